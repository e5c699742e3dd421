// The version of the program. CHANGELOG.md says what each version changed.
#ifndef ZERO_CLI_VERSION_H
#define ZERO_CLI_VERSION_H

#define ZERO_VERSION "0.2.0"

// The version with the commit that was built: "0.2.0 (commit 0123456789ab)", "-dirty" where files differ from
// the commit; "0.2.0 (unknown commit)" where there is no repository. Checkpoints keep this text.
const char *version_text(void);

// The version, the compiler, and a checksum of the sources and flags: what two builds of one program share,
// on whatever processors they run.
const char *version_build(void);

// Prints the version, then a line each for the compiler, the libraries found at run time, and the GPU
// architectures compiled in.
void version_print(void);

#endif
