// UTF-8 as the wire needs it: protobuf refuses strings that are not valid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ringfill::cli {

struct Utf8Repair {
  std::string text;         // valid UTF-8
  size_t replacements = 0;  // U+FFFD put in
  size_t first_offset = 0;  // byte offset in the input of the first one
};

// Replaces each maximal invalid subsequence by one U+FFFD, as the Unicode Standard recommends
// (section 3.9, "U+FFFD Substitution of Maximal Subparts"). Linear time.
Utf8Repair RepairUtf8(std::string_view bytes);

}  // namespace ringfill::cli
