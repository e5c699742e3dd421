// Names for addresses, from the program's own symbol table and, for lines of the source, addr2line.
#ifndef CUDASIM_SYMBOLS_H
#define CUDASIM_SYMBOLS_H

#include <string>

namespace cudasim {

// The function at an address, demangled without its parameters ("" where unknown).
std::string function_name(const void *address);
// "file.cu:12", the innermost line outside the simulator's headers ("" where unknown).
std::string source_line(const void *pc);

} // namespace cudasim

#endif
