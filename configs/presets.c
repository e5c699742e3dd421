// The Makefile generates the table, one row per file.
#include "configs/presets.h"

const struct preset presets[] = {
#include "configs/presets.inc"
};
const int n_presets = sizeof presets / sizeof *presets;
