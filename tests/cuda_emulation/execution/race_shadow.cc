#include "tests/cuda_emulation/execution/race_shadow.h"

#include <algorithm>

namespace ringfill::cuda_emulation {

void WarpClock::Reset() {
  time_ = 0;
  stamp_.fill(0);
  for (auto& row : known_) row.fill(0);
}

void WarpClock::Join(unsigned mask) {
  ++time_;
  std::array<uint32_t, kLanes> joined{};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    for (size_t i = 0; i < kLanes; ++i) joined[i] = std::max(joined[i], known_[lane][i]);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) != 0) joined[lane] = time_;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    known_[lane] = joined;
    stamp_[lane] = time_;
  }
}

void RaceShadow::NextEpoch() {
  if (++epoch_ != 0) return;
  std::fill(granules_.begin(), granules_.end(), Granule());
  epoch_ = 1;
}

bool RaceShadow::WriteOrdered(const Granule& g, const Who& who) const {
  if (g.write_epoch < epoch_ || g.write_thread == who.thread) return true;
  return g.write_thread / kLanes == who.thread / kLanes &&
         g.write_stamp < who.known[g.write_thread % kLanes];
}

bool RaceShadow::ReadsOrdered(const Granule& g, const Who& who) const {
  if (g.read_epoch < epoch_) return true;
  if (g.read_warp != who.thread / kLanes) return false;
  for (unsigned rest = g.readers & ~(1u << who.thread % kLanes); rest != 0; rest &= rest - 1) {
    if (g.read_stamp >= who.known[__builtin_ctz(rest)]) return false;
  }
  return true;
}

void RaceShadow::NoteRead(Granule& g, uint8_t bytes, const Who& who) const {
  const unsigned lane = 1u << who.thread % kLanes;
  if (ReadsOrdered(g, who)) {
    g.read_epoch = epoch_;
    g.read_stamp = who.stamp;
    g.read_warp = static_cast<uint16_t>(who.thread / kLanes);
    g.readers = lane;
    g.read_bytes = bytes;
    return;
  }
  g.read_bytes |= bytes;
  if (g.read_warp != who.thread / kLanes) {
    g.read_warp = kManyWarps;
    return;
  }
  g.readers |= lane;
  g.read_stamp = std::max(g.read_stamp, who.stamp);
}

void RaceShadow::NoteWrite(Granule& g, uint8_t bytes, bool atomic, const Who& who) const {
  const bool same = g.write_epoch == epoch_ && g.write_thread == who.thread &&
                    g.write_stamp == who.stamp && g.write_atomic == atomic;
  g.write_bytes = same ? static_cast<uint8_t>(g.write_bytes | bytes) : bytes;
  g.write_epoch = epoch_;
  g.write_stamp = who.stamp;
  g.write_thread = static_cast<uint16_t>(who.thread);
  g.write_atomic = atomic;
}

bool RaceShadow::Found(const char* earlier, int thread) {
  conflict_.earlier = earlier;
  conflict_.thread = thread;
  return false;
}

bool RaceShadow::AccessOne(AccessKind kind, Granule& g, uint8_t bytes, const Who& who) {
  if (g.copier != 0) return Found("an asynchronous copy not yet waited for", g.copier - 1);
  const bool atomics = kind == AccessKind::kAtomic && g.write_atomic;
  if ((g.write_bytes & bytes) != 0 && !atomics && !WriteOrdered(g, who)) {
    return Found(g.write_atomic ? "an atomic operation" : "a write", g.write_thread);
  }
  if (kind == AccessKind::kRead) {
    NoteRead(g, bytes, who);
    return true;
  }
  if ((g.read_bytes & bytes) != 0 && !ReadsOrdered(g, who)) {
    const bool one = g.read_warp != kManyWarps && (g.readers & (g.readers - 1)) == 0;
    return Found("a read", one ? g.read_warp * kLanes + __builtin_ctz(g.readers) : -1);
  }
  NoteWrite(g, bytes, kind == AccessKind::kAtomic, who);
  return true;
}

bool RaceShadow::Access(AccessKind kind, size_t offset, size_t bytes, const Who& who) {
  const size_t end = offset + bytes;
  for (size_t i = offset / kGranule; i * kGranule < end; ++i) {
    uint8_t mask = 3;
    if (i * kGranule < offset) mask &= 2;
    if ((i + 1) * kGranule > end) mask &= 1;
    if (!AccessOne(kind, granules_[i], mask, who)) {
      conflict_.offset = std::max(offset, i * kGranule);
      return false;
    }
  }
  return true;
}

bool RaceShadow::BeginCopy(size_t offset, size_t bytes, const Who& who) {
  if (!Access(AccessKind::kWrite, offset, bytes, who)) return false;
  for (size_t i = offset / kGranule; i * kGranule < offset + bytes; ++i) {
    granules_[i].copier = static_cast<uint16_t>(who.thread + 1);
  }
  return true;
}

void RaceShadow::EndCopy(size_t offset, size_t bytes, const Who& who) {
  for (size_t i = offset / kGranule; i * kGranule < offset + bytes; ++i) {
    granules_[i].copier = 0;
    NoteWrite(granules_[i], 3, false, who);
  }
}

}  // namespace ringfill::cuda_emulation
