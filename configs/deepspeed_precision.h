// Internal to the translation of DeepSpeed files: the sections bf16, fp16, torch_autocast, amp and
// data_types, and communication_data_type.
#ifndef ZERO_CONFIGS_DEEPSPEED_PRECISION_H
#define ZERO_CONFIGS_DEEPSPEED_PRECISION_H

#include "configs/deepspeed_translate.h"

void deepspeed_take_precision(struct translator *t);

#endif
