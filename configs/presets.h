// The presets, configs/gpt*.json, inside the program: taken in when it is built, so that their sizes stand in
// one place and the program knows them wherever it is.
#ifndef ZERO_CONFIGS_PRESETS_H
#define ZERO_CONFIGS_PRESETS_H

struct preset {
    const char *path; // "configs/gpt2-xl.json"
    const char *json; // what is in it
};
extern const struct preset presets[];
extern const int n_presets;

#endif
