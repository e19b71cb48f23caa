// Little-endian bytes for the binary encodings of plans and results. The reader is for bytes from
// outside: it never reads past their end, never allocates for more elements than the bytes that are
// left can hold, and keeps the first error, naming the field; after it everything reads as zero.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ringfill {

static_assert(std::endian::native == std::endian::little);

// Numbers that are written as they lie in memory.
template <typename T>
concept Scalar = (std::is_integral_v<T> && !std::same_as<T, bool>) || std::is_floating_point_v<T>;

class ByteWriter {
 public:
  template <Scalar T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutBool(bool value) { Put<uint8_t>(value ? 1 : 0); }
  template <typename E>
  requires std::is_enum_v<E>
  void PutEnum(E value) { Put(static_cast<uint8_t>(value)); }
  void PutCount(size_t count) { Put(static_cast<uint32_t>(count)); }
  void PutText(std::string_view text) {
    PutCount(text.size());
    bytes_.append(text);
  }
  // The message is cut to `most` bytes.
  void PutStatus(const absl::Status& status, size_t most) {
    PutEnum(status.code());
    const absl::string_view message = status.message();
    PutText({message.data(), std::min(message.size(), most)});
  }
  // `put` writes one element.
  template <typename T, typename F>
  void PutEach(const std::vector<T>& values, const F& put) {
    PutCount(values.size());
    for (const T& value : values) put(value, *this);
  }
  template <Scalar T>
  void PutAll(const std::vector<T>& values) {
    PutCount(values.size());
    if (!values.empty()) {
      bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  static constexpr int kStatusCodes = 17;

  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <Scalar T>
  T Get(const char* field) {
    T value{};
    if (!Need(sizeof(T), field)) return value;
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return value;
  }
  bool GetBool(const char* field) {
    const auto value = Get<uint8_t>(field);
    if (value > 1) Fail(field, absl::StrCat("is ", value, ", no truth value"));
    return value == 1;
  }
  // Values are [0, count).
  template <typename E>
  requires std::is_enum_v<E> E GetEnum(int count, const char* field) {
    const auto value = Get<uint8_t>(field);
    if (value >= count) {
      Fail(field, absl::StrCat("is ", value, ", the last one known is ", count - 1));
      return E{};
    }
    return static_cast<E>(value);
  }
  // A count of elements that take at least `element_bytes` each.
  size_t GetCount(size_t element_bytes, const char* field) {
    const auto count = Get<uint32_t>(field);
    if (count > left_.size() / element_bytes) {
      Fail(field, absl::StrCat("has ", count, " elements, ", left_.size(), " bytes are left"));
      return 0;
    }
    return count;
  }
  std::string GetText(const char* field) {
    const size_t size = GetCount(1, field);
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  // Fails for an unknown code, a message of more than `most` bytes, and one of no error: OK has
  // none, so that it would not encode to itself.
  absl::Status GetStatus(size_t most, const char* field) {
    const auto code = GetEnum<absl::StatusCode>(kStatusCodes, field);
    const std::string message = GetText(field);
    if (message.size() > most) {
      Fail(field, absl::StrCat("has a message of ", message.size(), " bytes, at most ", most));
    }
    if (code == absl::StatusCode::kOk && !message.empty()) Fail(field, "is OK with a message");
    return ok() ? absl::Status(code, message) : absl::OkStatus();
  }
  template <Scalar T>
  void GetAll(const char* field, std::vector<T>& values) {
    values.resize(GetCount(sizeof(T), field));
    if (values.empty()) return;
    std::memcpy(values.data(), left_.data(), values.size() * sizeof(T));
    left_.remove_prefix(values.size() * sizeof(T));
  }

  // `get` reads one element, which takes at least `element_bytes`.
  template <typename T, typename F>
  void GetEach(const char* field, size_t element_bytes, std::vector<T>& values, const F& get) {
    const size_t count = GetCount(element_bytes, field);
    for (size_t i = 0; i < count && ok(); ++i) values.push_back(get(*this));
  }

  bool ok() const { return status_.ok(); }
  size_t left() const { return left_.size(); }
  void Fail(const char* field, std::string_view what) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(field, " ", std::string(what)));
    }
    left_ = {};
  }
  // The first error; bytes that are left over are one.
  absl::Status Finish() {
    if (!left_.empty()) Fail("end", absl::StrCat("has ", left_.size(), " bytes behind it"));
    return status_;
  }

 private:
  bool Need(size_t bytes, const char* field) {
    if (left_.size() >= bytes) return true;
    Fail(field, absl::StrCat("is cut off: ", bytes, " bytes needed, ", left_.size(), " left"));
    return false;
  }

  std::string_view left_;
  absl::Status status_;
};

}  // namespace ringfill
