// A GGUF v2 or v3 file, memory-mapped. Every offset, count, length and type is checked against the
// file before use, so a hostile file gives an error that names the file, the field and what is
// supported; it never crashes, and never allocates more than in proportion to the file's size.
//
// Format: ggml-org/ggml, docs/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/status.h"

namespace ringfill {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// A metadata value; strings and arrays point into the mapping.
struct GgufArray {
  GgufType element_type;
  uint64_t count;
  std::span<const std::byte> bytes;  // the encoded elements
};
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string_view name;
  uint32_t type_id = 0;              // ggml type number, not checked against what we support
  int dims = 0;                      // 1 to 4
  uint64_t shape[4] = {1, 1, 1, 1};  // shape[0] is the fastest (row length)
  uint64_t offset = 0;               // from the start of the file
};

// Immutable after opening; thread-safe. Everything handed out lives as long as the file object.
class GgufFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT, with the path and the field.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // Parses bytes owned by the caller (tests, fuzzing). `name` is used in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes,
                                                         std::string name);
  ~GgufFile();

  const std::string& path() const;
  uint32_t version() const;
  std::span<const std::byte> bytes() const;
  const std::vector<GgufTensor>& tensors() const;
  const GgufTensor* FindTensor(std::string_view name) const;  // null when absent
  const GgufValue* FindValue(std::string_view key) const;     // null when absent

  // Typed access. Absent: the default (or, in the form without one, INVALID_ARGUMENT naming the
  // key). Present with another type, or out of the target's range: INVALID_ARGUMENT.
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  absl::StatusOr<uint64_t> GetUint(std::string_view key, uint64_t default_value) const;
  absl::StatusOr<double> GetFloat(std::string_view key, double default_value) const;
  absl::StatusOr<bool> GetBool(std::string_view key, bool default_value) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key,
                                             std::string_view default_value) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;

  // An error about this file: "<path>: <message>".
  absl::Status Error(std::string_view message) const;

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfill
