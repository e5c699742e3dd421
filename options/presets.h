// The presets of models in configs, embedded into the program at build time, so that it does not need the
// files.
#ifndef ZERO_OPTIONS_PRESETS_H
#define ZERO_OPTIONS_PRESETS_H

struct preset {
    const char *path; // "configs/gpt2-xl.json"
    const char *json; // the content of the file
};
extern const struct preset presets[];
extern const int n_presets;

#endif
