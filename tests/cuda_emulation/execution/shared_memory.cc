#include "tests/cuda_emulation/execution/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/cuda_emulation/execution/address_sanitizer.h"

namespace ringfill::cuda_emulation {
namespace {

constexpr std::align_val_t kAlignment{1024};
constexpr int kPoison = 0xff;

}  // namespace

SharedMemory::SharedMemory()
    : memory_(static_cast<unsigned char*>(::operator new(kSpan, kAlignment))),
      valid_(kSpan / kChunk, 0) {
  Poison(memory_, kSpan);
}

SharedMemory::~SharedMemory() {
  Unpoison(memory_, kSpan);
  ::operator delete(memory_, kAlignment);
}

void SharedMemory::Declare(size_t offset, size_t bytes) {
  Unpoison(memory_ + offset, bytes);
  std::memset(memory_ + offset, kPoison, bytes);
  for (size_t done = 0; done < bytes; done += kChunk) {
    valid_[(offset + done) / kChunk] = static_cast<uint8_t>(std::min(kChunk, bytes - done));
  }
}

void SharedMemory::StartLaunch(size_t dynamic_bytes) {
  arrays_.clear();
  next_ = kStaticOffset;
  static_bytes_ = 0;
  dynamic_bytes_ = dynamic_bytes;
  std::fill(valid_.begin(), valid_.end(), uint8_t{0});
  Poison(memory_, kSpan);
  if (dynamic_bytes != 0) Declare(kDynamicOffset, dynamic_bytes);
}

void SharedMemory::StartBlock() {
  for (const Array& array : arrays_) std::memset(memory_ + array.offset, kPoison, array.bytes);
  std::memset(memory_ + kDynamicOffset, kPoison, dynamic_bytes_);
}

void* SharedMemory::Static(const SharedSite& site, size_t bytes) {
  for (const Array& array : arrays_) {
    if (array.site == &site) return memory_ + array.offset;
  }
  const size_t rounded = (bytes + kChunk - 1) / kChunk * kChunk;
  static_bytes_ += rounded;
  if (static_bytes_ > kStaticSharedLimit || static_bytes_ + dynamic_bytes_ > kOptInSharedLimit) {
    return nullptr;
  }
  arrays_.push_back({&site, next_, bytes});
  Declare(next_, bytes);
  next_ += rounded + kRedZone;
  return memory_ + arrays_.back().offset;
}

std::string SharedMemory::Name(size_t offset) const {
  for (const Array& array : arrays_) {
    if (offset >= array.offset && offset < array.offset + array.bytes) {
      return "byte " + std::to_string(offset - array.offset) + " of " + array.site->name;
    }
  }
  return "byte " + std::to_string(offset - kDynamicOffset) + " of the dynamic part";
}

}  // namespace ringfill::cuda_emulation
