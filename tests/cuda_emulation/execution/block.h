// Runs the blocks of a kernel launch one after the other on the calling OS thread. The threads of a
// block are fibers; which of those that can go on does is drawn anew at every switch, from a seed.
// What a kernel does wrong ends the launch with a report; the fibers are abandoned.
//
// The functions of emulated_device_code.h are called on a fiber and find the executor through
// `running`.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda_emulation/execution/fiber.h"
#include "tests/cuda_emulation/execution/race_shadow.h"
#include "tests/cuda_emulation/execution/shared_memory.h"
#include "tests/cuda_emulation/include/emulated_device_calls.h"
#include "tests/cuda_emulation/include/emulated_launch.h"
#include "tests/cuda_emulation/random.h"

namespace ringfill::cuda_emulation {

inline constexpr int kMaxBlockThreads = 1024;

// What all lanes of a collective must agree on.
struct Collective {
  const char* name;
  Site site;
  unsigned mask;
};

struct AsyncCopy {
  unsigned char* shared;
  const void* device;
  int bytes;
  int group;  // number of commits of the thread before it
  bool landed;
};

struct BlockThread {
  enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kExited };

  Fiber fiber;
  int index;
  State state;
  Collective waiting;  // while kAtBarrier or kAtCollective
  Site last_site;      // of the last barrier or collective passed
  int groups;          // of asynchronous copies committed
  std::vector<AsyncCopy> copies;

  int lane() const { return index % kLanes; }
  int warp() const { return index / kLanes; }
};

// In the reserved top of each fiber's stack.
struct ThreadPlace {
  uint3 thread;
  uint3 block;
  dim3 block_dim;
  dim3 grid_dim;
};

class BlockExecutor {
 public:
  static BlockExecutor& OfThisThread();

  // Empty when all blocks ran to their end, else what went wrong.
  std::string RunGrid(const KernelLaunch& launch, int device, uint64_t seed);

  // ---- on a fiber
  // Two steps, so that no text is alive on the stack that is left for good.
  void Report(const std::string& what, Site site);
  [[noreturn]] void Leave();
  // Waits until all lanes of `collective.mask` called with equal arguments. The last to come calls
  // `complete` with the operands of all lanes in the mask first.
  using Complete = void (*)(BlockExecutor& executor, unsigned mask,
                            const std::array<void*, kLanes>& operands);
  void Meet(const Collective& collective, void* operands, Complete complete);
  void SyncThreads(Site site);
  // Checks an access of `thread`, its own if it is the one that runs.
  void Check(AccessKind kind, const void* p, size_t bytes, const BlockThread& thread, Site site);
  void CheckAligned(const void* p, size_t bytes, Site site);
  size_t SharedOffset(const void* p) const {
    return static_cast<size_t>(static_cast<const unsigned char*>(p) - shared_.data());
  }
  bool IsShared(const void* p) const { return SharedOffset(p) < SharedMemory::kSpan; }
  RaceShadow::Who WhoIs(const BlockThread& thread) const;
  unsigned LanesOf(int warp) const;  // that exist

  BlockThread& thread() { return *current_; }
  const ThreadPlace& place() const { return PlaceOf(*current_); }
  BlockThread& thread(int index) { return threads_[static_cast<size_t>(index)]; }
  SharedMemory& shared() { return shared_; }
  RaceShadow& races() { return races_; }
  WarpClock& clock(int warp) { return clocks_[static_cast<size_t>(warp)]; }
  Random& random() { return random_; }
  int device() const { return device_; }

 private:
  // Lanes on their way into one collective.
  struct Gathering {
    Collective collective{};
    unsigned arrived = 0;
    std::array<void*, kLanes> operands{};  // on the fibers' stacks
  };
  // Gatherings of a warp name different lanes of those that have arrived, so there are few.
  struct Warp {
    unsigned exited = 0;
    int gatherings = 0;
    std::array<Gathering, kLanes> gathering;
  };

  BlockExecutor();
  Gathering& Join(const Collective& collective, unsigned mask);
  static const ThreadPlace& PlaceOf(const BlockThread& thread) {
    return *reinterpret_cast<const ThreadPlace*>(thread.fiber.reserved());
  }
  static void RunThread(void* thread);
  void StartBlock(uint3 block);
  void RunBlock(uint3 block);
  // Those that were never waited for.
  void ForgetCopies(BlockThread& thread);
  bool ReleaseBarrier();
  void FailWhereStuck();
  void CheckShared(AccessKind kind, const void* p, size_t bytes, const BlockThread& thread,
                   Site site);
  void CheckElsewhere(AccessKind kind, const void* p, size_t bytes, Site site);
  std::string Describe(const std::string& what, Site site, const BlockThread* thread) const;
  std::string NameThread(int index) const;

  FiberStacks stacks_;
  std::vector<BlockThread> threads_;
  std::vector<WarpClock> clocks_;
  std::vector<Warp> warps_;
  SharedMemory shared_;
  RaceShadow races_;
  Random random_;
  std::vector<BlockThread*> ready_;
  BlockThread* current_ = nullptr;
  const KernelLaunch* launch_ = nullptr;
  int device_ = 0;
  int count_ = 0;  // threads of a block
  uint64_t seed_ = 0;
  uint3 block_{};
  std::string failure_;
};

// Of this OS thread. `checking` while kernel code runs, not the emulation below it.
struct Running {
  BlockExecutor* executor;
  bool checking;
};
extern constinit thread_local Running running;

// The emulation's own accesses are not a kernel's.
class InLibrary {
 public:
  InLibrary() { running.checking = false; }
  ~InLibrary() { running.checking = true; }
  InLibrary(const InLibrary&) = delete;
  InLibrary& operator=(const InLibrary&) = delete;
};

}  // namespace ringfill::cuda_emulation
