// Names for addresses, from the program's own symbol table and, for lines of the source, addr2line. A
// stripped program runs as well; its messages then lack names.
#ifndef CUDASIM_SYMBOLS_H
#define CUDASIM_SYMBOLS_H

#include <cstddef>
#include <string>
#include <vector>

namespace cudasim {

// The function at an address, demangled without its parameters ("" where unknown).
std::string function_name(const void *address);
// "file.cu:12" of the first of these return addresses that lies in the program under test, neither in the
// simulator nor in a library ("" where unknown).
std::string source_line(void *const *return_addresses, int n);

// The program's thread-local memory, in which __shared__ variables lie: where it is for the calling thread.
struct thread_memory {
    char *begin;
    size_t bytes;
};
thread_memory thread_local_memory();

struct thread_variable {
    std::string name;     // mangled
    size_t offset, bytes; // within the thread-local memory
    bool local; // declared in a function, as __shared__ ones are; not the compiler's guards for them
};
// For each byte of the thread-local memory the variable there, or NULL; nothing for a stripped program.
const std::vector<const thread_variable *> &thread_variables();
// Those declared in the function at an address: a kernel's own __shared__ variables.
std::vector<thread_variable> thread_variables_of(const void *function);
// Its name in the source.
std::string variable_name(const thread_variable &variable);

const char *program_begin();
// Whether an address lies in the program's loaded code or data.
bool in_program(const void *address);

} // namespace cudasim

#endif
