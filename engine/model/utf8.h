// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <string_view>

namespace ringfill {

struct Utf8Step {
  enum Kind {
    kValid,       // a whole character
    kInvalid,     // can never become valid whatever follows
    kIncomplete,  // a proper prefix of a character at the end of the text
  };
  Kind kind;
  size_t length;  // 1 to 4; for kInvalid the maximal subpart (Unicode 15, section 3.9)
};

// The first step of a text. REQUIRES: not empty.
Utf8Step NextUtf8(std::string_view text);

// Length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

}  // namespace ringfill
