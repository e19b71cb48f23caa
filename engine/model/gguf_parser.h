// The checked reading of a GGUF file's header, metadata and tensor list from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "engine/model/gguf_file.h"

namespace ringfill {

// Views into the parsed bytes.
struct GgufContents {
  uint32_t version = 0;
  absl::flat_hash_map<std::string_view, GgufValue> values;
  std::vector<GgufTensor> tensors;  // in file order
  absl::flat_hash_map<std::string_view, size_t> tensor_index;
};

// After success every value lies within `bytes`, strings of arrays included; every tensor starts
// within it, and ends within it where its type is one that we read (WeightTypeFromGguf). Errors
// name the field, without the file.
absl::StatusOr<GgufContents> ParseGguf(std::span<const std::byte> bytes);

// Bytes of one fixed-size element; 0 for strings, arrays and unknown types.
size_t GgufScalarBytes(GgufType type);
// A fixed-size element at `data`.
GgufValue ReadGgufScalar(GgufType type, const std::byte* data);

}  // namespace ringfill
