// Names taken from a model file, made safe for messages and logs.
#pragma once

#include <string>
#include <string_view>

namespace ringfill {

// Control characters and invalid UTF-8 escaped, cut to about 80 bytes. No quotes are added.
std::string Printable(std::string_view text);

}  // namespace ringfill
