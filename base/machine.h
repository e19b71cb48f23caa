// What this process finds on its machine.
#pragma once

#include <cstdint>
#include <string>

namespace ringfill {

// Cores that this process may use; at least 1.
int UsableCores();
// Physical memory.
int64_t MachineBytes();
// "unknown" when the system does not say.
std::string HostName();
// The running kernel's own, another one after each boot; containers of a machine share it. Empty
// when the system does not say.
std::string BootId();

}  // namespace ringfill
