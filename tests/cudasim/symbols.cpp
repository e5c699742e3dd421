#include "tests/cudasim/symbols.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cudasim {

namespace {

// The program as loaded.
struct image {
    uintptr_t bias = 0; // address in memory minus address in the file
    uintptr_t begin = UINTPTR_MAX, end = 0;
    size_t thread_bytes = 0;
};

int read_image(dl_phdr_info *info, size_t, void *out) {
    image &program = *static_cast<image *>(out);
    program.bias = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &segment = info->dlpi_phdr[i];
        if (segment.p_type == PT_TLS)
            program.thread_bytes = segment.p_memsz;
        if (segment.p_type != PT_LOAD)
            continue;
        program.begin = std::min(program.begin, program.bias + segment.p_vaddr);
        program.end = std::max(program.end, program.bias + segment.p_vaddr + segment.p_memsz);
    }
    return 1; // the program comes first; skip the libraries
}

const image &program() {
    static const image loaded = [] {
        image read;
        dl_iterate_phdr(read_image, &read);
        return read;
    }();
    return loaded;
}

struct symbol_table {
    std::map<uintptr_t, const char *> functions;    // by address in the file
    std::map<uintptr_t, thread_variable> variables; // by offset in thread-local memory
    std::vector<const thread_variable *> at_offset; // the variable at each byte
};

// The file stays mapped, because the names point into it.
symbol_table *read_symbols() {
    symbol_table *table = new symbol_table;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status))
        return table;
    void *map = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return table;
    const char *bytes = static_cast<const char *>(map);
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(bytes);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(bytes + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(bytes + sections[i].sh_offset);
        const char *names = bytes + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
            const ElfW(Sym) &symbol = symbols[s];
            const char *name = names + symbol.st_name;
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value)
                table->functions[symbol.st_value] = name;
            if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS && symbol.st_shndx != SHN_UNDEF)
                table->variables[symbol.st_value] = {name, symbol.st_value, symbol.st_size,
                                                     !strncmp(name, "_ZZ", 3)};
        }
    }
    table->at_offset.resize(program().thread_bytes);
    for (auto &entry : table->variables)
        for (size_t i = 0; i < entry.second.bytes; i++)
            table->at_offset[entry.second.offset + i] = &entry.second;
    return table;
}

const symbol_table &symbols() {
    static const symbol_table *table = read_symbols();
    return *table;
}

const char *mangled_name(const void *function) {
    const auto &functions = symbols().functions;
    auto after = functions.upper_bound(reinterpret_cast<uintptr_t>(function) - program().bias);
    return after == functions.begin() ? nullptr : std::prev(after)->second;
}

std::string demangle(const char *symbol) {
    int failed = 0;
    char *demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &failed);
    std::string name = failed ? symbol : demangled;
    free(demangled);
    const std::string anonymous = "(anonymous namespace)::";
    for (size_t at; (at = name.find(anonymous)) != std::string::npos;)
        name.erase(at, anonymous.size());
    return name;
}

// "void fill<float>(float*)" -> "fill<float>"
std::string without_parameters(const std::string &name) {
    int depth = 0;
    size_t begin = 0;
    for (size_t i = 0; i < name.size(); i++) {
        depth += (name[i] == '<') - (name[i] == '>');
        if (depth == 0 && name[i] == ' ')
            begin = i + 1;
        if (depth == 0 && name[i] == '(')
            return name.substr(begin, i - begin);
    }
    return name;
}

bool is_simulator(const std::string &place) {
    size_t at = place.find("tests/cudasim/");
    return at != std::string::npos && place.find("/test_", at) == std::string::npos;
}

// Asks addr2line for all addresses in order, with the functions inlined at each, innermost first.
std::string ask_addr2line(void *const *return_addresses, int n) {
    char command[2048];
    int length = snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe", int(getpid()));
    // One less than a return address is in the call; the instruction after it may be on another line.
    for (int i = 0; i < n && length < int(sizeof command) - 64; i++)
        if (in_program(return_addresses[i]))
            length += snprintf(command + length, sizeof command - size_t(length), " 0x%lx",
                               (unsigned long)(uintptr_t(return_addresses[i]) - program().bias - 1));
    snprintf(command + length, sizeof command - size_t(length), " 2>/dev/null");
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return "";
    std::string found;
    char line[1024];
    while (fgets(line, sizeof line, pipe)) {
        std::string place(line, 0, std::string(line).find_first_of(" \n"));
        bool unknown = place.find('?') != std::string::npos || place.find("/usr/") == 0;
        if (found.empty() && !unknown && !is_simulator(place))
            found = place;
    }
    pclose(pipe);
    char folder[1024];
    if (getcwd(folder, sizeof folder) && found.find(folder) == 0)
        found.erase(0, strlen(folder) + 1);
    return found;
}

} // namespace

std::string function_name(const void *address) {
    const char *mangled = mangled_name(address);
    return mangled ? without_parameters(demangle(mangled)) : "";
}

std::string source_line(void *const *return_addresses, int n) {
    static std::mutex mutex;
    static auto *known = new std::map<std::vector<void *>, std::string>;
    std::lock_guard<std::mutex> guard(mutex);
    std::vector<void *> key(return_addresses, return_addresses + n);
    auto found = known->find(key);
    if (found == known->end())
        found = known->emplace(key, ask_addr2line(return_addresses, n)).first;
    return found->second;
}

thread_memory thread_local_memory() {
    thread_memory memory = {nullptr, program().thread_bytes};
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *out) {
            *static_cast<char **>(out) = static_cast<char *>(info->dlpi_tls_data);
            return 1;
        },
        &memory.begin);
    return memory;
}

const std::vector<const thread_variable *> &thread_variables() {
    return symbols().at_offset;
}

std::vector<thread_variable> thread_variables_of(const void *function) {
    std::vector<thread_variable> found;
    const char *mangled = mangled_name(function);
    if (!mangled || strncmp(mangled, "_Z", 2))
        return found;
    // The mangled name of a local static: _ZZ, that of the function without _Z, E, the variable.
    std::string prefix = std::string("_ZZ") + (mangled + 2) + "E";
    for (auto &entry : symbols().variables)
        if (entry.second.name.compare(0, prefix.size(), prefix) == 0)
            found.push_back(entry.second);
    return found;
}

const char *program_begin() {
    return reinterpret_cast<const char *>(program().begin);
}

bool in_program(const void *address) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at >= program().begin && at < program().end;
}

std::string variable_name(const thread_variable &variable) {
    std::string name = demangle(variable.name.c_str());
    size_t at = name.rfind("::");
    return at == std::string::npos ? name : name.substr(at + 2);
}

} // namespace cudasim
