// The name of a function of this program, from its symbol table.
#pragma once

#include <string>

namespace ringfill::cuda_emulation {

// Demangled, without parameters; its address when the program is stripped.
std::string SymbolName(const void* function);

}  // namespace ringfill::cuda_emulation
