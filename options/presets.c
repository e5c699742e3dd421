// The Makefile generates the table, one row per file.
#include "options/presets.h"

const struct preset presets[] = {
#include "options/presets.inc"
};
const int n_presets = sizeof presets / sizeof *presets;
