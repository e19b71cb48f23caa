// What emulated_device_code.h declares, except asynchronous copies, matrices and atomics.
#include <cstring>

#include "tests/cuda_emulation/execution/block.h"

namespace ringfill::cuda_emulation {
namespace {

struct ShuffleOperands {
  ShuffleKind kind;
  int argument;
  uint64_t bits;
  uint64_t result;
  bool from_outside;
};

int SourceLane(const ShuffleOperands& operands, int lane) {
  const int argument = operands.argument;
  int source = lane;
  switch (operands.kind) {
    case ShuffleKind::kLane:
      source = argument;
      break;
    case ShuffleKind::kXor:
      source = lane ^ argument;
      break;
    case ShuffleKind::kUp:
      source = lane - argument;
      break;
  }
  return source < 0 || source >= kLanes ? lane : source;
}

void CompleteShuffle(BlockExecutor&, unsigned mask, const std::array<void*, kLanes>& operands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    auto* own = static_cast<ShuffleOperands*>(operands[static_cast<size_t>(lane)]);
    if ((mask >> lane & 1) == 0) continue;
    const int source = SourceLane(*own, lane);
    own->from_outside = (mask >> source & 1) == 0;
    if (own->from_outside) continue;
    own->result = static_cast<const ShuffleOperands*>(operands[static_cast<size_t>(source)])->bits;
  }
}

struct VoteOperands {
  bool predicate;
  unsigned ballot;
};

void CompleteVote(BlockExecutor&, unsigned mask, const std::array<void*, kLanes>& operands) {
  unsigned ballot = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const bool set = static_cast<VoteOperands*>(operands[static_cast<size_t>(lane)])->predicate;
    ballot |= static_cast<unsigned>(set) << lane;
  }
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    static_cast<VoteOperands*>(operands[static_cast<size_t>(__builtin_ctz(rest))])->ballot = ballot;
  }
}

void CompleteSyncWarp(BlockExecutor& executor, unsigned mask, const std::array<void*, kLanes>&) {
  executor.clock(executor.thread().warp()).Join(mask);
}

// By address: collectives of one kind have one name.
constexpr const char* kShuffleNames[] = {"Shuffle", "ShuffleXor", "ShuffleUp"};
constexpr const char* kVoteNames[] = {"Any", "All"};
constexpr const char* kSyncWarpName = "SyncWarp";

}  // namespace

const uint3& ThreadIndex() { return running.executor->place().thread; }
const uint3& BlockIndex() { return running.executor->place().block; }
const dim3& BlockDim() { return running.executor->place().block_dim; }
const dim3& GridDim() { return running.executor->place().grid_dim; }

void* StaticShared(const SharedSite& site, size_t bytes) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  void* memory = executor.shared().Static(site, bytes);
  if (memory != nullptr) return memory;
  executor.Report(std::string("no shared memory left for ") + site.name + ": " +
                      std::to_string(executor.shared().static_bytes()) + " bytes static (limit " +
                      std::to_string(kStaticSharedLimit) + ") and " +
                      std::to_string(executor.shared().dynamic_bytes()) +
                      " dynamic (limit of both " + std::to_string(kOptInSharedLimit) + ")",
                  {site.file, site.line});
  executor.Leave();
}

unsigned char* DynamicShared() {
  const InLibrary in_library;
  return running.executor->shared().dynamic();
}

void SyncThreads(Site site) {
  const InLibrary in_library;
  running.executor->SyncThreads(site);
}

void SyncWarp(unsigned mask, Site site) {
  const InLibrary in_library;
  running.executor->Meet({kSyncWarpName, site, mask}, nullptr, &CompleteSyncWarp);
}

void Trap(Site site) {
  const InLibrary in_library;
  running.executor->Report("the kernel trapped", site);
  running.executor->Leave();
}

uint64_t Shuffle(ShuffleKind kind, unsigned mask, uint64_t bits, int argument, Site site) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  const char* name = kShuffleNames[static_cast<int>(kind)];
  ShuffleOperands operands{kind, argument, bits, 0, false};
  executor.Meet({name, site, mask}, &operands, &CompleteShuffle);
  if (operands.from_outside) {
    executor.Report(std::string(name) + " reads a lane that its mask does not name", site);
    executor.Leave();
  }
  return operands.result;
}

bool Vote(VoteKind kind, unsigned mask, bool predicate, Site site) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  VoteOperands operands{predicate, 0};
  executor.Meet({kVoteNames[static_cast<int>(kind)], site, mask}, &operands, &CompleteVote);
  const unsigned all = mask & executor.LanesOf(executor.thread().warp());
  return kind == VoteKind::kAny ? operands.ballot != 0 : operands.ballot == all;
}

void CheckedRead(const void* from, size_t bytes, void* to) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  executor.CheckAligned(from, bytes, {});
  executor.Check(AccessKind::kRead, from, bytes, executor.thread(), {});
  std::memcpy(to, from, bytes);
}

void CheckedWrite(void* to, size_t bytes, const void* from) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  executor.CheckAligned(to, bytes, {});
  executor.Check(AccessKind::kWrite, to, bytes, executor.thread(), {});
  std::memcpy(to, from, bytes);
}

uint16_t FloatToHalf(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  // From 65520 on, half way beyond the largest half, it is infinite.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // Subnormal: multiples of 2^-24, rounded to even by the addition itself.
    const float scaled = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000;
  return static_cast<uint16_t>(sign | rounded >> 13);
}

}  // namespace ringfill::cuda_emulation
