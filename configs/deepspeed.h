// DeepSpeed's words that are not ours: whoever brings a configuration from there is told what does here what
// that word did. Sources: DeepSpeed's documentation, "DeepSpeed Configuration JSON" (0.19).
#ifndef ZERO_CONFIGS_DEEPSPEED_H
#define ZERO_CONFIGS_DEEPSPEED_H

// What to do about an option or section of that last name ("pin_memory"), or NULL where it is no word of
// DeepSpeed's.
const char *deepspeed_advice(const char *name);

#endif
