// Opens NCCL at run time instead of linking it, so that the program starts on machines without NCCL.
#ifndef ZERO_ZERO_COMM_NCCL_LOAD_H
#define ZERO_ZERO_COMM_NCCL_LOAD_H

#include "base/status.h"
#include "zero/comm/nccl/api.h"

// Finds the library's functions and its version (21805 for 2.18.5). Symbols already in the process take
// precedence: a simulator, or a library that another component loaded, replaces the one on disk. The library
// is never unloaded.
// Errors: STATUS_UNSUPPORTED if it is missing, too old or lacks a function. The message names what to
// install.
enum status nccl_load(struct nccl_api *api, int *version) MUST_CHECK;

#define NCCL_VERSION_TEXT_BYTES 16
// Formats a version as "2.18.5"; returns `buffer`.
const char *nccl_version_text(int version, char buffer[NCCL_VERSION_TEXT_BYTES]);
// Prints to `buffer` the version of the library that nccl_load finds, or "not found". Returns `buffer`.
const char *nccl_found_version(char buffer[NCCL_VERSION_TEXT_BYTES]);

#endif
