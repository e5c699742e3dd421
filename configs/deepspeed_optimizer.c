// The optimizer and the learning rate schedule of a DeepSpeed file.
#include "configs/deepspeed_optimizer.h"

#include <math.h>
#include <strings.h>

#include "configs/deepspeed_names.h"

#define FROM_TRAINER "the file names none, so the Trainer's default is written: set yours"

// ---- optimizer

static const struct {
    const char *theirs, *ours;
    const char *alters; // what differs, or NULL
} optimizers[] = {
    {"AdamW", "adamw", NULL},
    {"Adam", "adamw", NULL}, // with adam_w_mode, which is its default
    {"Lion", "lion", NULL},
    {"SGD", "sgd", NULL},
    {"Adafactor", "adamw",
     "there is no Adafactor here; adamw is written, whose moments take a quarter of the memory with "
     "optimizer.state_dtype=int8"},
    {"OneBitAdam", "adamw",
     "there are no 1-bit optimizers; adamw is written, whose gradients are sent whole"},
    {"ZeroOneAdam", "adamw",
     "there are no 1-bit optimizers; adamw is written, whose gradients are sent whole"},
    {"Lamb", "adamw", "there is no LAMB here; adamw is written, whose learning rate is smaller: set yours"},
    {"OneBitLamb", "adamw",
     "there is no LAMB here; adamw is written, whose learning rate is smaller: set yours"},
    {"Muon", "muon",
     "set optimizer.lr, and adamw_lr for the tensors that adamw updates: they are muon_lr and adam_lr"},
};

static bool is_text(const cJSON *value, const char *text) {
    return cJSON_IsString(value) && strcasecmp(value->valuestring, text) == 0;
}

// Returns our word; "adamw" for what is unknown.
static const char *take_type(struct translator *t) {
    const cJSON *type = deepspeed_take(t, "optimizer.type"),
                *adam_w = deepspeed_take(t, "optimizer.params.adam_w_mode");
    if (adam_w)
        deepspeed_answer(t, &t->out->translated, "optimizer.params.adam_w_mode", adam_w,
                         "of type Adam, it chooses optimizer.type: adamw for true, adam for false");
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        if (!is_text(type, optimizers[i].theirs))
            continue;
        const bool plain = is_text(type, "Adam") && cJSON_IsFalse(adam_w);
        const char *word = plain ? "adam" : optimizers[i].ours;
        deepspeed_set_word(
            t, &t->out->translated, "optimizer.type", type, "optimizer.type", word,
            is_text(type, "Adam") && !plain ? "DeepSpeed's Adam is AdamW unless adam_w_mode=false" : "");
        if (optimizers[i].alters)
            deepspeed_answer(t, &t->out->alters, "optimizer.type", type, "%s", optimizers[i].alters);
        return word;
    }
    deepspeed_set_word(t, &t->out->alters, "optimizer.type", type, "optimizer.type", "adamw",
                       type ? "there is no such optimizer here; choose one of adamw, adam, sgd, lion, muon, "
                              "schedulefree_adamw"
                            : "choose one of adamw, adam, sgd, lion, muon, schedulefree_adamw");
    return "adamw";
}

static void take_betas(struct translator *t, const char *word) {
    const bool lion = strcasecmp(word, "lion") == 0;
    const cJSON *betas = deepspeed_take(t, "optimizer.params.betas");
    cJSON *usual = cJSON_CreateDoubleArray((const double[]){0.9, lion ? 0.99 : 0.999}, 2);
    if (!betas)
        deepspeed_set(t, &t->out->translated, "optimizer.params.betas", NULL, "optimizer.betas", usual,
                      "DeepSpeed's default");
    else if (deepspeed_is_auto(betas))
        deepspeed_set(t, &t->out->chosen, "optimizer.params.betas", betas, "optimizer.betas", usual,
                      "the Trainer's adam_beta1 and adam_beta2; their defaults are written: set yours");
    else
        deepspeed_set(t, &t->out->translated, "optimizer.params.betas", betas, "optimizer.betas", betas, "");
    cJSON_Delete(usual);
}

// torch: PyTorch's Adam, whose default differs from DeepSpeed's own.
static void take_weight_decay(struct translator *t, bool torch) {
    const char *path = "optimizer.params.weight_decay";
    const cJSON *value = deepspeed_take_number(
        t, &(struct deepspeed_number){path, "optimizer.weight_decay", torch ? 0.01 : 0, "weight_decay", 0});
    if (t->out->config.optimizer.weight_decay > 0)
        deepspeed_answer(
            t, &t->out->alters, path, value,
            "norms and biases are not decayed here, as in the Trainer; DeepSpeed decays all that the "
            "script does not exempt");
}

// The script makes the optimizer, or the Trainer, which fills in "auto".
static void without_optimizer(struct translator *t) {
    if (!t->has_auto) {
        deepspeed_answer(
            t, &t->out->chosen, "optimizer", NULL,
            "the script makes it: set optimizer.type, lr, betas, eps and weight_decay; until then they "
            "have the defaults of this program");
        return;
    }
    cJSON *betas = cJSON_CreateDoubleArray((const double[]){0.9, 0.999}, 2);
    deepspeed_set_word(t, &t->out->chosen, "optimizer", NULL, "optimizer.type", "adamw", FROM_TRAINER);
    deepspeed_set_number(t, &t->out->chosen, "optimizer", NULL, "optimizer.lr", 5e-5, FROM_TRAINER);
    deepspeed_set(t, &t->out->chosen, "optimizer", NULL, "optimizer.betas", betas, FROM_TRAINER);
    deepspeed_set_number(t, &t->out->chosen, "optimizer", NULL, "optimizer.weight_decay", 0, FROM_TRAINER);
    cJSON_Delete(betas);
}

void deepspeed_take_optimizer(struct translator *t) {
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(t->rest, "optimizer"))) {
        without_optimizer(t);
        return;
    }
    const cJSON *torch = deepspeed_take(t, "optimizer.params.torch_adam");
    if (torch)
        deepspeed_answer(t, &t->out->needless, "optimizer.params.torch_adam", torch,
                         "the optimizer step is always one fused pass");
    const char *word = take_type(t);
    const bool moments = word[0] == 'a'; // adamw, adam
    deepspeed_take_number(
        t, &(struct deepspeed_number){"optimizer.params.lr", "optimizer.lr", 1e-3, "learning_rate", 5e-5});
    if (moments || strcasecmp(word, "lion") == 0)
        take_betas(t, word);
    if (moments)
        deepspeed_take_number(t, &(struct deepspeed_number){"optimizer.params.eps", "optimizer.eps", 1e-8,
                                                            "adam_epsilon", 1e-8});
    if (strcasecmp(word, "sgd") == 0)
        deepspeed_take_number(t, &(struct deepspeed_number){"optimizer.params.momentum", "optimizer.momentum",
                                                            0, "sgd's momentum", 0});
    take_weight_decay(t, cJSON_IsTrue(torch));
}

// ---- scheduler

// low: the path of the rate or ratio at which warm-up starts; returns its value.
static const cJSON *take_warmup(struct translator *t, const char *low) {
    deepspeed_take_number(t, &(struct deepspeed_number){"scheduler.params.warmup_num_steps",
                                                        "scheduler.warmup_steps", 1000,
                                                        "warmup_steps, or warmup_ratio x steps", 0});
    const cJSON *type = deepspeed_take(t, "scheduler.params.warmup_type"), *from = deepspeed_take(t, low);
    if (t->out->config.scheduler.warmup_steps > 0 && !is_text(type, "linear"))
        deepspeed_answer(t, &t->out->alters, "scheduler.params.warmup_type", type,
                         "warm-up is linear here; DeepSpeed's default is logarithmic");
    else if (type)
        deepspeed_answer(t, &t->out->translated, "scheduler.params.warmup_type", type, "warm-up is linear");
    if (deepspeed_is_auto(from) || cJSON_IsNull(from) || (cJSON_IsNumber(from) && from->valuedouble == 0))
        deepspeed_answer(t, &t->out->translated, low, from, "warm-up starts from 0");
    else if (from)
        deepspeed_answer(t, &t->out->alters, low, from, "warm-up starts from 0 here");
    return from;
}

// The schedule's peak is the learning rate, whatever the optimizer's was.
//   missing   DeepSpeed's default; NAN: the optimizer's rate
static void take_peak(struct translator *t, double missing) {
    const char *path = "scheduler.params.warmup_max_lr";
    const cJSON *peak = deepspeed_take(t, path);
    const double lr = t->out->config.optimizer.lr;
    const bool replaces = config_given(&t->out->config, "optimizer.lr");
    if (deepspeed_is_auto(peak)) {
        if (!replaces)
            deepspeed_set_number(t, &t->out->chosen, path, peak, "optimizer.lr", 5e-5,
                                 "the Trainer's learning_rate; its default is written: set yours");
        else
            deepspeed_answer(t, &t->out->translated, path, peak, "optimizer.lr");
    } else if (peak && !cJSON_IsNull(peak))
        deepspeed_set(t, &t->out->translated, path, peak, "optimizer.lr", peak,
                      cJSON_IsNumber(peak) && peak->valuedouble != lr && replaces
                          ? "the schedule's rate replaces the optimizer's"
                          : "");
    else if (peak)
        deepspeed_answer(t, &t->out->off, path, peak, "not set");
    else if (!isnan(missing))
        deepspeed_set_number(t, &t->out->translated, path, NULL, "optimizer.lr", missing,
                             "DeepSpeed's default; the schedule's rate replaces the optimizer's");
}

// WarmupDecayLR starts from warmup_min_lr and decays to it.
static void take_decay(struct translator *t) {
    take_peak(t, 1e-3);
    const cJSON *low = take_warmup(t, "scheduler.params.warmup_min_lr");
    const double lr = t->out->config.optimizer.lr;
    if (cJSON_IsNumber(low) && low->valuedouble > 0 && lr > 0)
        deepspeed_set_number(t, &t->out->translated, "scheduler.params.warmup_min_lr", low,
                             "scheduler.min_lr_ratio", low->valuedouble / lr,
                             "it decays to this rate: warmup_min_lr / optimizer.lr");
    else
        deepspeed_set_number(t, &t->out->translated, "scheduler.params.warmup_min_lr", low,
                             "scheduler.min_lr_ratio", 0, "it decays to 0");
}

static void take_length(struct translator *t) {
    deepspeed_take_number(t, &(struct deepspeed_number){"scheduler.params.total_num_steps", "train.max_steps",
                                                        NAN, "max_steps, or epochs", NAN});
}

// What the file does not name: a constant rate, or what the Trainer does.
static void without_scheduler(struct translator *t) {
    if (t->has_auto) {
        deepspeed_set_word(t, &t->out->chosen, "scheduler", NULL, "scheduler.type", "linear", FROM_TRAINER);
        deepspeed_set_number(t, &t->out->chosen, "scheduler", NULL, "scheduler.warmup_steps", 0,
                             FROM_TRAINER);
        deepspeed_set_number(t, &t->out->chosen, "scheduler", NULL, "scheduler.min_lr_ratio", 0,
                             FROM_TRAINER);
    } else {
        deepspeed_set_word(t, &t->out->chosen, "scheduler", NULL, "scheduler.type", "constant",
                           "without one the rate is constant, unless the script sets it");
        deepspeed_set_number(t, &t->out->chosen, "scheduler", NULL, "scheduler.warmup_steps", 0,
                             "without one there is no warm-up, unless the script has it");
    }
}

void deepspeed_take_scheduler(struct translator *t) {
    const cJSON *type = deepspeed_take(t, "scheduler.type");
    if (!type || cJSON_IsNull(type)) {
        without_scheduler(t);
    } else if (is_text(type, "WarmupLR")) {
        deepspeed_set_word(t, &t->out->translated, "scheduler.type", type, "scheduler.type", "constant", "");
        take_peak(t, NAN);
        take_warmup(t, "scheduler.params.warmup_min_lr");
    } else if (is_text(type, "WarmupDecayLR")) {
        deepspeed_set_word(t, &t->out->translated, "scheduler.type", type, "scheduler.type", "linear", "");
        take_decay(t);
        take_length(t);
    } else if (is_text(type, "WarmupCosineLR")) {
        deepspeed_set_word(t, &t->out->translated, "scheduler.type", type, "scheduler.type", "cosine", "");
        deepspeed_take_number(t, &(struct deepspeed_number){"scheduler.params.cos_min_ratio",
                                                            "scheduler.min_lr_ratio", 1e-4, "cos_min_ratio",
                                                            1e-4});
        take_warmup(t, "scheduler.params.warmup_min_ratio");
        take_length(t);
    } else {
        const bool ours = deepspeed_is_our_word(option_find("scheduler.type"), type);
        deepspeed_set_word(t, &t->out->alters, "scheduler.type", type, "scheduler.type",
                           ours ? type->valuestring : "constant",
                           ours ? "DeepSpeed has no such schedule"
                                : "there is no such schedule here; choose one of constant, cosine, linear, "
                                  "warmup-stable-decay");
        deepspeed_set_number(t, &t->out->alters, "scheduler.type", type, "scheduler.warmup_steps", 0,
                             "choose it too");
        const cJSON *params = deepspeed_take(t, "scheduler.params");
        if (params)
            deepspeed_answer(t, &t->out->alters, "scheduler.params", params, "left out with the schedule");
    }
}
