// The table is made by the Makefile, a row a file.
#include "configs/presets.h"

const struct preset presets[] = {
#include "configs/presets.inc"
};
const int n_presets = sizeof presets / sizeof *presets;
