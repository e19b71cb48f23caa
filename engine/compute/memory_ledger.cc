#include "engine/compute/memory_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr size_t kLeastBytes = 4096;

}  // namespace

MemoryLedger::Use& MemoryLedger::Find(MemoryPool pool, std::string_view what) {
  const auto it = uses_.find(what);
  return it != uses_.end() ? it->second : uses_.emplace(what, Use{pool}).first->second;
}

void MemoryLedger::Add(MemoryPool pool, std::string_view what, size_t bytes) {
  MutexLock lock(&mutex_);
  Use& use = Find(pool, what);
  use.bytes += bytes;
  use.peak = std::max(use.peak, use.bytes);
}

void MemoryLedger::Remove(std::string_view what, size_t bytes) {
  MutexLock lock(&mutex_);
  const auto it = uses_.find(what);
  if (it == uses_.end() && bytes == 0) return;
  RF_CHECK(it != uses_.end() && it->second.bytes >= bytes);
  it->second.bytes -= bytes;
}

void MemoryLedger::Set(MemoryPool pool, std::string_view what, size_t bytes) {
  MutexLock lock(&mutex_);
  Use& use = Find(pool, what);
  use.bytes = bytes;
  use.peak = std::max(use.peak, bytes);
}

std::vector<Device::MemoryUse> MemoryLedger::Uses() const {
  MutexLock lock(&mutex_);
  std::vector<Device::MemoryUse> out;
  for (const auto& [what, use] : uses_) out.push_back({what, use.pool, use.bytes, use.peak});
  return out;
}

LedgerBuffer::~LedgerBuffer() { ledger_->Remove(what_, buffer_.size()); }

void LedgerBuffer::Reserve(size_t bytes) {
  if (buffer_.size() >= bytes) return;
  const size_t wanted = std::max(bytes, kLeastBytes);
  // The old one goes first, so that the two never count together.
  ledger_->Remove(what_, buffer_.size());
  buffer_ = AlignedBuffer();
  buffer_ = AlignedBuffer(wanted);
  ledger_->Add(MemoryPool::kScratch, what_, wanted);
}

}  // namespace ringfill
