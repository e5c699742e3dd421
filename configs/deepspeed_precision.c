// The types of a DeepSpeed file: what it computes in, and what gradients are sent and accumulated in.
#include "configs/deepspeed_precision.h"

#include <stdio.h>
#include <string.h>

enum { BF16, BFLOAT16, FP16, AUTOCAST, AMP, N_MODES };
struct mode {
    const char *section, *word; // of precision.compute
    bool whole;                 // the section is a value, as in {"bf16": true}
    char path[64];              // of the switch
    const cJSON *enabled;       // its value; NULL where it is not there
};

static bool is_on(const struct mode *mode) {
    return cJSON_IsTrue(mode->enabled);
}

static void take_switch(struct translator *t, struct mode *mode) {
    const cJSON *section = cJSON_GetObjectItemCaseSensitive(t->rest, mode->section);
    mode->whole = section && !cJSON_IsObject(section);
    snprintf(mode->path, sizeof mode->path, "%s%s", mode->section, mode->whole ? "" : ".enabled");
    mode->enabled = deepspeed_take(t, mode->path);
}

static void set_mode(struct translator *t, int i, const struct mode *mode) {
    if (i < AUTOCAST) {
        deepspeed_set_word(t, &t->out->translated, mode->path, mode->enabled, "precision.compute", mode->word,
                           mode->whole ? "DeepSpeed expects {\"enabled\": true}" : "");
        return;
    }
    deepspeed_set_word(t, &t->out->alters, mode->path, mode->enabled, "precision.compute", mode->word,
                       "parameters have this type too, with fp32 master weights");
    const cJSON *others = deepspeed_take(t, mode->section);
    if (others && others->child)
        deepspeed_answer(t, &t->out->alters, mode->section, others,
                         "its other members have no equivalent here");
}

// A mode that is not on, nor "auto".
static void drop_mode(struct translator *t, const struct mode *mode) {
    const cJSON *enabled = mode->enabled;
    if (enabled && !cJSON_IsFalse(enabled) && !cJSON_IsNull(enabled))
        deepspeed_answer(t, &t->out->alters, mode->path, enabled,
                         mode->whole ? "taken for off; DeepSpeed expects {\"enabled\": true}"
                                     : "neither true nor false: taken for false");
    else if (mode->whole)
        deepspeed_answer(t, &t->out->off, mode->path, enabled, cJSON_IsNull(enabled) ? "not set" : "off");
    const cJSON *section = deepspeed_take(t, mode->section);
    if (section)
        deepspeed_answer(t, &t->out->off, mode->section, section, "off");
}

// on: the mode that the file switches on, or NULL.
static void answer_auto(struct translator *t, const struct mode *mode, const struct mode *on) {
    if (on)
        deepspeed_answer(t, &t->out->chosen, mode->path, mode->enabled,
                         "the Trainer's --%s; precision.compute is %s because %s is true", mode->section,
                         on->word, on->path);
    else
        deepspeed_answer(
            t, &t->out->chosen, mode->path, mode->enabled,
            "the Trainer's --%s: set precision.compute (bf16, fp16 or fp32); until then it is the "
            "faster of fp32 and bf16",
            mode->section);
}

// As DeepSpeed's, the type is that of the parameters where the file gives none.
//   on          the mode that is on, or NULL
//   automatic   the Trainer decides it
static void take_communication_type(struct translator *t, const struct mode *on, bool automatic) {
    const char *name = "communication_data_type";
    const cJSON *value = deepspeed_take(t, name);
    const char *word = cJSON_GetStringValue(value);
    if (word && (strcmp(word, "bfp16") == 0 || strcmp(word, "bfloat16") == 0))
        word = "bf16";
    if (value && !cJSON_IsNull(value))
        deepspeed_set_word(t, &t->out->translated, name, value, name, word ? word : "null", "");
    else if (on)
        deepspeed_set_word(t, &t->out->translated, name, value, name, on->word,
                           "DeepSpeed's default: the compute type; fp32 is this program's");
    else if (automatic)
        deepspeed_answer(t, &t->out->chosen, name, value,
                         "the compute type there, fp32 here: set it to send gradients as DeepSpeed does");
    else if (value)
        deepspeed_answer(t, &t->out->off, name, value, "not set");
}

// fp32 is what this program does; other types are left to the row of foreign.def.
static void take_accumulation_type(struct translator *t) {
    const char *path = "data_types.grad_accum_dtype";
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(t->rest, "data_types"),
                *type = cJSON_GetObjectItemCaseSensitive(types, "grad_accum_dtype");
    const char *word = cJSON_GetStringValue(type);
    if (word && strcmp(word, "fp32") == 0)
        deepspeed_answer(t, &t->out->needless, path, deepspeed_take(t, path),
                         "gradients are accumulated in fp32");
}

void deepspeed_take_precision(struct translator *t) {
    struct mode modes[N_MODES] = {
        [BF16] = {.section = "bf16", .word = "bf16"},
        [BFLOAT16] = {.section = "bfloat16", .word = "bf16"},
        [FP16] = {.section = "fp16", .word = "fp16"},
        [AUTOCAST] = {.section = "torch_autocast", .word = "bf16"},
        [AMP] = {.section = "amp", .word = "fp16"},
    };
    const cJSON *dtype = deepspeed_take(t, "torch_autocast.dtype");
    if (dtype)
        deepspeed_answer(t, &t->out->translated, "torch_autocast.dtype", dtype,
                         "the type, if torch_autocast is on");
    if (cJSON_IsString(dtype) && strstr(dtype->valuestring, "float16") &&
        !strstr(dtype->valuestring, "bfloat16"))
        modes[AUTOCAST].word = "fp16";
    const struct mode *on = NULL, *parameters = NULL; // the last that is on, and that of bf16 or fp16
    bool automatic = false;
    for (int i = 0; i < N_MODES; i++) {
        take_switch(t, &modes[i]);
        automatic |= deepspeed_is_auto(modes[i].enabled);
        on = is_on(&modes[i]) ? &modes[i] : on;
        parameters = is_on(&modes[i]) && i < AUTOCAST ? &modes[i] : parameters;
    }
    if (is_on(&modes[FP16]) && (is_on(&modes[BF16]) || is_on(&modes[BFLOAT16])))
        deepspeed_refuse(t, "bf16 and fp16 are both enabled, which DeepSpeed refuses; disable one of them");
    for (int i = 0; i < N_MODES; i++)
        if (is_on(&modes[i]))
            set_mode(t, i, &modes[i]);
        else if (deepspeed_is_auto(modes[i].enabled))
            answer_auto(t, &modes[i], on);
        else
            drop_mode(t, &modes[i]);
    if (!on && !automatic)
        deepspeed_set_word(t, &t->out->translated, "fp16.enabled, bf16.enabled", NULL, "precision.compute",
                           "fp32", "neither is on");
    take_communication_type(t, parameters, automatic && !on);
    take_accumulation_type(t);
}
