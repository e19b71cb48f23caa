#include "tests/testing/gguf_fields.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr uint32_t kString = 8, kArray = 9;

size_t ScalarBytes(uint32_t type) {
  constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  RF_CHECK(type < std::size(kBytes));
  return kBytes[type];
}

class Walker {
 public:
  explicit Walker(std::span<const std::byte> file) : file_(file) {}

  uint64_t Number(const std::string& what, size_t bytes) {
    uint64_t value = 0;
    RF_CHECK(at_ + bytes <= file_.size());
    std::memcpy(&value, file_.data() + at_, bytes);
    fields.push_back({what, at_, bytes});
    at_ += bytes;
    return value;
  }

  void String(const std::string& what) { at_ += Number(what + " length", 8); }

  void Value(const std::string& what) {
    const auto type = static_cast<uint32_t>(Number(what + " type", 4));
    if (type == kString) return String(what);
    if (type != kArray) {
      at_ += ScalarBytes(type);
      return;
    }
    const auto element = static_cast<uint32_t>(Number(what + " element type", 4));
    const uint64_t count = Number(what + " count", 8);
    if (element != kString) {
      at_ += count * ScalarBytes(element);
      return;
    }
    for (uint64_t i = 0; i < count; ++i) String(what + " element");
  }

  void Tensor(const std::string& what) {
    String(what);
    const uint64_t dims = Number(what + " dims", 4);
    for (uint64_t d = 0; d < dims; ++d) Number(what + " shape", 8);
    Number(what + " type", 4);
    Number(what + " offset", 8);
  }

  size_t at() const { return at_; }
  std::vector<GgufField> fields;

 private:
  const std::span<const std::byte> file_;
  size_t at_ = 4;
};

}  // namespace

std::vector<GgufField> ListGgufFields(std::span<const std::byte> file, size_t* header_bytes) {
  Walker walker(file);
  walker.Number("version", 4);
  const uint64_t tensors = walker.Number("tensor count", 8);
  const uint64_t values = walker.Number("metadata count", 8);
  for (uint64_t i = 0; i < values; ++i) {
    walker.String("key " + std::to_string(i));
    walker.Value("value " + std::to_string(i));
  }
  for (uint64_t i = 0; i < tensors; ++i) walker.Tensor("tensor " + std::to_string(i));
  *header_bytes = walker.at();
  return walker.fields;
}

}  // namespace ringfill
