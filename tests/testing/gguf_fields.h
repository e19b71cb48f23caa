// Where the numbers of a GGUF file's header lie, found by a walk of its own, for tests that spoil
// them one by one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace ringfill {

struct GgufField {
  std::string what;
  size_t offset;
  size_t bytes;  // 4 or 8
};

// Of a valid file: version, counts, every string's length, value and element type, array count,
// tensor dimension, shape, type and offset. `header_bytes` gets where the tensor list ends.
std::vector<GgufField> ListGgufFields(std::span<const std::byte> file, size_t* header_bytes);

}  // namespace ringfill
