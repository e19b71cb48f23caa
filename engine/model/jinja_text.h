// The string literals of a Jinja template, all that recognition reads of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringfill {

// Literals inside {{ }} and {% %} in order, with \n, \t, \\, \' and \" resolved; text outside of
// these is template output and returned as literals too. Comments {# #} are left out. Any input is
// accepted; an unterminated part ends with the text.
std::vector<std::string> JinjaLiterals(std::string_view jinja);

}  // namespace ringfill
