// A page-aligned block of bytes, mapped lazily: memory becomes resident when first touched.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace ringfill {

// Owns its bytes; movable. Not thread-safe as an object; the bytes are whatever the user makes
// them.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zero-filled. Aborts when the address space is exhausted (a host allocation failure).
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ringfill
