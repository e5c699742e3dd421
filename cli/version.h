// The version of the program. CHANGELOG.md lists the changes of each version.
#ifndef ZERO_CLI_VERSION_H
#define ZERO_CLI_VERSION_H

#define ZERO_VERSION "0.2.0"

// The version and the commit that was built: "0.2.0 (commit 0123456789ab)", with "-dirty" if files differ
// from the commit; "0.2.0 (unknown commit)" without a repository. Checkpoints record this text.
const char *version_text(void);

// The version, the compiler, and a checksum of the sources and flags. Equal for two builds of the same
// program, also for different processors.
const char *version_build(void);

// Prints the version, then a line each for the compiler, the libraries found at run time, and the GPU
// architectures compiled in.
void version_print(void);

#endif
