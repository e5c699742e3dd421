#include "tests/cudasim/symbols.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace cudasim {

namespace {

// Where the program was loaded: what an address loses to become one of the file's.
uintptr_t load_bias() {
    static const uintptr_t bias = [] {
        uintptr_t found = 0;
        dl_iterate_phdr(
            [](dl_phdr_info *info, size_t, void *out) {
                *static_cast<uintptr_t *>(out) = info->dlpi_addr;
                return 1; // the program comes first
            },
            &found);
        return found;
    }();
    return bias;
}

std::map<uintptr_t, std::string> read_functions() {
    std::map<uintptr_t, std::string> functions;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status))
        return functions;
    void *map = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return functions;
    const char *image = static_cast<const char *>(map);
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(image);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(image + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && symbols[s].st_value)
                functions[symbols[s].st_value] = names + symbols[s].st_name;
    }
    munmap(map, size_t(status.st_size));
    return functions;
}

// "void (anonymous namespace)::fill<float>(float*)" -> "fill<float>"
std::string short_name(const char *symbol) {
    int failed = 0;
    char *demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &failed);
    std::string name = failed ? symbol : demangled;
    free(demangled);
    const std::string anonymous = "(anonymous namespace)::";
    for (size_t at; (at = name.find(anonymous)) != std::string::npos;)
        name.erase(at, anonymous.size());
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

std::string ask_addr2line(uintptr_t address) {
    char command[128];
    snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%lx 2>/dev/null", int(getpid()),
             (unsigned long)address);
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return "";
    std::string found;
    char line[1024];
    while (fgets(line, sizeof line, pipe)) {
        std::string place(line, 0, std::string(line).find_first_of(" \n"));
        bool unknown = place.find("??") != std::string::npos || place.find(":0") == place.size() - 2;
        if (found.empty() && !unknown && place.find("tests/cudasim/include/") == std::string::npos)
            found = place;
    }
    pclose(pipe);
    return found;
}

} // namespace

std::string function_name(const void *address) {
    static const std::map<uintptr_t, std::string> *functions =
        new std::map<uintptr_t, std::string>(read_functions());
    auto after = functions->upper_bound(reinterpret_cast<uintptr_t>(address) - load_bias());
    return after == functions->begin() ? "" : short_name(std::prev(after)->second.c_str());
}

std::string source_line(const void *pc) {
    static std::mutex mutex;
    static std::map<const void *, std::string> *known = new std::map<const void *, std::string>;
    std::lock_guard<std::mutex> guard(mutex);
    auto found = known->find(pc);
    if (found != known->end())
        return found->second;
    // The instruction before: a return address is that of the next line as often as not.
    return (*known)[pc] = ask_addr2line(reinterpret_cast<uintptr_t>(pc) - load_bias() - 1);
}

} // namespace cudasim
