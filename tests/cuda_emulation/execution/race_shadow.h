// Finds accesses of two threads of a block to the same bytes of shared memory, one of them a write,
// with no barrier between, whatever order the threads happened to run in.
//
// Every two bytes of shared memory have a record of who wrote them last and who read them since
// (the idea of the thread sanitizer's shadow words; "FastTrack", Flanagan and Freund, 2009). Time
// is counted in two ways. A block barrier starts a new epoch: all that lies in an older one is
// ordered. Within an epoch only lanes of one warp can be ordered, by warp barriers: each raises the
// warp's stamp, and each lane knows up to which stamp it has seen every other lane's work.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringfill::cuda_emulation {

inline constexpr int kLanes = 32;

// What the lanes of one warp know of each other.
class WarpClock {
 public:
  void Reset();
  // The lanes in `mask` meet.
  void Join(unsigned mask);
  uint32_t stamp(int lane) const { return stamp_[static_cast<size_t>(lane)]; }
  // Work of lane b with a stamp below known(a)[b] comes before what lane a does now.
  const uint32_t* known(int lane) const { return known_[static_cast<size_t>(lane)].data(); }

 private:
  uint32_t time_ = 0;
  std::array<uint32_t, kLanes> stamp_;
  std::array<std::array<uint32_t, kLanes>, kLanes> known_;
};

enum class AccessKind { kRead, kWrite, kAtomic };

class RaceShadow {
 public:
  struct Who {
    int thread;
    uint32_t stamp;
    const uint32_t* known;
  };
  struct Conflict {
    const char* earlier;  // "a write", "a read", ...
    int thread;           // -1: several
    size_t offset;
  };

  explicit RaceShadow(size_t bytes) : granules_((bytes + kGranule - 1) / kGranule) {}

  // A block barrier, and the start of a block.
  void NextEpoch();
  // False when it conflicts with what was recorded; see conflict(). Else it is recorded.
  bool Access(AccessKind kind, size_t offset, size_t bytes, const Who& who);
  // An asynchronous copy is on its way to these bytes: any access conflicts until it lands.
  bool BeginCopy(size_t offset, size_t bytes, const Who& who);
  void EndCopy(size_t offset, size_t bytes, const Who& who);
  const Conflict& conflict() const { return conflict_; }

 private:
  static constexpr size_t kGranule = 2;
  static constexpr uint16_t kManyWarps = 0xffff;
  struct Granule {
    uint32_t write_epoch = 0;
    uint32_t write_stamp = 0;
    uint32_t read_epoch = 0;
    uint32_t read_stamp = 0;
    uint32_t readers = 0;  // lanes of read_warp
    uint16_t write_thread = 0;
    uint16_t read_warp = 0;
    uint16_t copier = 0;  // thread + 1
    uint8_t write_bytes = 0;
    uint8_t read_bytes = 0;
    bool write_atomic = false;
  };

  bool WriteOrdered(const Granule& g, const Who& who) const;
  bool ReadsOrdered(const Granule& g, const Who& who) const;
  bool AccessOne(AccessKind kind, Granule& g, uint8_t bytes, const Who& who);
  void NoteRead(Granule& g, uint8_t bytes, const Who& who) const;
  void NoteWrite(Granule& g, uint8_t bytes, bool atomic, const Who& who) const;
  bool Found(const char* earlier, int thread);

  std::vector<Granule> granules_;
  uint32_t epoch_ = 1;
  Conflict conflict_{};
};

}  // namespace ringfill::cuda_emulation
