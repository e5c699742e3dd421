// Faults for tests of train.on_spike: the environment variable ZERO_INJECT_GRADIENTS multiplies the gradients
// of chosen steps, "AT:FACTOR,AT:FACTOR", where FACTOR may be nan or inf. AT counts the steps of data, from
// 1: a step that is repeated with other data (after a rewind) has another number.
#ifndef ZERO_TRAINER_SPIKES_INJECTION_H
#define ZERO_TRAINER_SPIKES_INJECTION_H

#include <stdint.h>

// The factor of this step; 1 without the variable.
float injection_factor(int64_t at);

#endif
