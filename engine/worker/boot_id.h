// What tells machines of one name apart.
#pragma once

#include <string>

namespace ringfill {

// The running kernel's own, another one after each boot; containers of a machine share it. Empty
// when the system does not say.
std::string BootId();

}  // namespace ringfill
