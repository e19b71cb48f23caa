// Little-endian numbers in byte buffers whose size the caller has checked.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace ringfill {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

// Writes fields one after the other.
class WireWriter {
 public:
  explicit WireWriter(std::byte* at) : at_(at) {}
  template <typename T>
  WireWriter& Put(const T& value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
    return *this;
  }

 private:
  std::byte* at_;
};

class WireReader {
 public:
  explicit WireReader(const std::byte* at) : at_(at) {}
  template <typename T>
  T Get() {
    T value;
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }

 private:
  const std::byte* at_;
};

}  // namespace ringfill
