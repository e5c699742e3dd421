// Advice for users who bring a DeepSpeed configuration: for each DeepSpeed option that this program does not
// have, what to use instead. Source: DeepSpeed's documentation, "DeepSpeed Configuration JSON" (0.19).
#ifndef ZERO_CONFIGS_DEEPSPEED_H
#define ZERO_CONFIGS_DEEPSPEED_H

// Advice about the DeepSpeed option or section with this last name component ("pin_memory"); NULL when there
// is none. It completes the message "unknown option X; ...".
const char *deepspeed_advice(const char *name);

#endif
