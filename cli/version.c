// Library versions are queried at run time, because they may differ from those at compile time. The Makefile
// sets ZERO_COMMIT ("" without a repository) and ZERO_SOURCES (a checksum).
#include "cli/version.h"

#include <cjson/cJSON.h>
#include <hwloc.h>
#include <microhttpd.h>
#include <mpi.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "kernels/cpu/onednn.h"
#include "kernels/device.h"
#include "zero/comm/nccl/load.h"

#ifdef __clang__
#    define COMPILER __VERSION__
#else
#    define COMPILER "gcc " __VERSION__
#endif

const char *version_text(void) {
    return ZERO_COMMIT[0] ? ZERO_VERSION " (commit " ZERO_COMMIT ")" : ZERO_VERSION " (unknown commit)";
}

const char *version_build(void) {
    return ZERO_COMMIT[0] ? ZERO_VERSION " (commit " ZERO_COMMIT ", sources " ZERO_SOURCES ") of " COMPILER
                          : ZERO_VERSION " (sources " ZERO_SOURCES ") of " COMPILER;
}

static void print_line(const char *name, const char *value) {
    printf("%-18s  %s\n", name, value);
}

// ---- libraries

// Prints the start of the MPI library's description, which is "Open MPI v4.1.4, package: ..." or
// "MPICH Version:      4.0.2\n...", and the version of the MPI standard. MPI allows these calls before
// MPI_Init.
static void print_mpi(void) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "", value[160];
    int length = 0, version = 0, subversion = 0;
    MPI_Get_library_version(library, &length);
    MPI_Get_version(&version, &subversion);
    library[strcspn(library, ",\n")] = 0;
    snprintf(value, sizeof value, "%.120s (MPI %d.%d)", library, version, subversion);
    for (char *c = value; (c = strpbrk(c, "\t ")); c++) { // replace white space by single spaces
        *c = ' ';
        size_t extra = strspn(c + 1, "\t ");
        memmove(c + 1, c + 1 + extra, strlen(c + 1 + extra) + 1);
    }
    print_line("MPI", value);
}

static void print_xxhash(void) {
    char value[32];
    unsigned version = XXH_versionNumber(); // 801 is 0.8.1
    snprintf(value, sizeof value, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
    print_line("xxHash", value);
}

static void print_hwloc(void) {
    char value[32];
    unsigned version = hwloc_get_api_version(); // 0x00020700 is 2.7.0
    snprintf(value, sizeof value, "%u.%u.%u (API)", version >> 16, version >> 8 & 0xff, version & 0xff);
    print_line("hwloc", value);
}

void version_print(void) {
    char buffer[400], nccl[NCCL_VERSION_TEXT_BYTES];
    printf("zero.c %s\n", version_text());
    print_line("compiler", COMPILER);
    print_line("oneDNN", product_library(buffer, sizeof buffer) + strlen("oneDNN "));
    print_mpi();
    print_line("cJSON", cJSON_Version());
    print_line("utf8proc", utf8proc_version());
    print_line("zlib", zlibVersion());
    print_line("zstd", ZSTD_versionString());
    print_xxhash();
    print_line("libsodium", sodium_version_string());
    print_hwloc();
    print_line("libmicrohttpd", MHD_get_version());
    print_line("GPU architectures", cuda_device_architectures(buffer, sizeof buffer));
    print_line("cuBLAS", cuda_device_cublas(buffer, sizeof buffer));
    print_line("NCCL", nccl_found_version(nccl));
    print_line("cuDNN", cuda_device_cudnn(buffer, sizeof buffer));
}
