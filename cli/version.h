// The version of the program. CHANGELOG.md lists the changes of each version.
#ifndef ZERO_CLI_VERSION_H
#define ZERO_CLI_VERSION_H

#define ZERO_VERSION "0.2.0"

// Returns the version and the commit that was built: "0.2.0 (commit 0123456789ab)", with "-dirty" after the
// commit if files differ from it; "0.2.0 (unknown commit)" without a repository. Checkpoints record this
// text.
const char *version_text(void);

// Returns the version, the commit (if known), a checksum of the sources and compiler flags, and the compiler.
// Equal for two builds of the same program, also for different processors.
const char *version_build(void);

// Prints the version; then one line each for the compiler, every library found at run time, and the GPU
// architectures that the build contains.
void version_print(void);

#endif
