#include "tests/cuda_emulation/execution/symbol_name.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace ringfill::cuda_emulation {
namespace {

std::string Demangle(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  // "void space::Kernel<float>(float*)": the result type and the parameters go.
  if (!result.empty() && result.back() == ')') {
    int depth = 0;
    size_t at = result.size();
    do {
      --at;
      depth += result[at] == ')' ? 1 : result[at] == '(' ? -1 : 0;
    } while (depth > 0 && at > 0);
    result.resize(at);
  }
  return result.starts_with("void ") ? result.substr(5) : result;
}

// Symbols that are not exported are found in the file alone.
std::string FindInFile(const char* path, uintptr_t address) {
  std::ifstream file(path, std::ios::binary);
  ElfW(Ehdr) header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header))) return "";
  std::vector<ElfW(Shdr)> sections(header.e_shnum);
  file.seekg(static_cast<std::streamoff>(header.e_shoff));
  file.read(reinterpret_cast<char*>(sections.data()),
            static_cast<std::streamsize>(sections.size() * sizeof(sections[0])));
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    std::vector<ElfW(Sym)> symbols(section.sh_size / sizeof(ElfW(Sym)));
    file.seekg(static_cast<std::streamoff>(section.sh_offset));
    file.read(reinterpret_cast<char*>(symbols.data()),
              static_cast<std::streamsize>(section.sh_size));
    std::vector<char> names(sections[section.sh_link].sh_size);
    file.seekg(static_cast<std::streamoff>(sections[section.sh_link].sh_offset));
    file.read(names.data(), static_cast<std::streamsize>(names.size()));
    for (const ElfW(Sym) & symbol : symbols) {
      if (symbol.st_value == address && symbol.st_name < names.size() &&
          names[symbol.st_name] != 0) {
        return &names[symbol.st_name];
      }
    }
  }
  return "";
}

}  // namespace

std::string SymbolName(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) != 0 && info.dli_sname != nullptr && info.dli_saddr == function) {
    return Demangle(info.dli_sname);
  }
  if (info.dli_fbase != nullptr) {
    const std::string name =
        FindInFile("/proc/self/exe", reinterpret_cast<uintptr_t>(function) -
                                         reinterpret_cast<uintptr_t>(info.dli_fbase));
    if (!name.empty()) return Demangle(name.c_str());
  }
  char text[32];
  std::snprintf(text, sizeof(text), "at %p", function);
  return text;
}

}  // namespace ringfill::cuda_emulation
