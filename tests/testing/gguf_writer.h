// Writes GGUF files for tests: metadata and tensors in memory, also files that no sane tool would
// write (raw metadata values, any version). Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ringfill {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint32_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  // Metadata, written in the order of the calls; keys are not checked for duplicates.
  void AddUint32(std::string_view key, uint32_t value);
  void AddUint64(std::string_view key, uint64_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, const std::vector<std::string>& values);
  void AddInts(std::string_view key, const std::vector<int32_t>& values);
  // A value of any type number with its encoded bytes as they are.
  void AddRaw(std::string_view key, uint32_t type_id, std::string_view encoded);

  // shape[0] is the row length. `bytes` is written as it is, whatever the shape says.
  void AddTensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type_id,
                 std::vector<std::byte> bytes);

  std::vector<std::byte> Build() const;
  // The same, piece by piece; stops at the first error of `write`.
  absl::Status WriteTo(const std::function<absl::Status(std::string_view)>& write) const;

 private:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type_id;
    std::vector<std::byte> bytes;
  };

  std::string Header() const;
  void BeginValue(std::string_view key, uint32_t type_id);

  uint32_t version_;
  uint32_t alignment_;
  uint64_t values_ = 0;
  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace ringfill
