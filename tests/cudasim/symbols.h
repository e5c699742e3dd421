// Names of addresses, from the program's symbol table, and source lines, from addr2line. A stripped program
// runs too, but its messages have no names.
#ifndef CUDASIM_SYMBOLS_H
#define CUDASIM_SYMBOLS_H

#include <cstddef>
#include <string>
#include <vector>

namespace cudasim {

// The function at an address, demangled, without parameters ("" if unknown).
std::string function_name(const void *address);
// "file.cu:12" of the first of these return addresses that is in the program under test, not in the simulator
// or a library ("" if unknown).
std::string source_line(void *const *return_addresses, int n);

// The calling thread's thread-local memory of the program, which contains the __shared__ variables.
struct thread_memory {
    char *begin;
    size_t bytes;
};
thread_memory thread_local_memory();

struct thread_variable {
    std::string name;     // mangled
    size_t offset, bytes; // within the thread-local memory
    bool local; // declared in a function, as __shared__ variables are; not a compiler's guard variable
};
// For each byte of the thread-local memory, its variable or NULL; empty for a stripped program.
const std::vector<const thread_variable *> &thread_variables();
// The variables declared in the function at an address: a kernel's own __shared__ variables.
std::vector<thread_variable> thread_variables_of(const void *function);
// The variable's name in the source.
std::string variable_name(const thread_variable &variable);

const char *program_begin();
// Whether an address is in the program's loaded code or data.
bool in_program(const void *address);

} // namespace cudasim

#endif
