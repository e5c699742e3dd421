// Internal to the translation of DeepSpeed files: the sections `optimizer` and `scheduler`.
#ifndef ZERO_CONFIGS_DEEPSPEED_OPTIMIZER_H
#define ZERO_CONFIGS_DEEPSPEED_OPTIMIZER_H

#include "configs/deepspeed_translate.h"

// The optimizer first: a schedule's peak replaces its learning rate.
void deepspeed_take_optimizer(struct translator *t);
void deepspeed_take_scheduler(struct translator *t);

#endif
