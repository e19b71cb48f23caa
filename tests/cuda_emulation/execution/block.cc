#include "tests/cuda_emulation/execution/block.h"

#include <cstring>
#include <numeric>

#include "tests/cuda_emulation/execution/symbol_name.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/memory/program_image.h"

namespace ringfill::cuda_emulation {

constinit thread_local Running running{nullptr, false};

namespace {

bool SameSite(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string NamePlace(Site site) {
  if (site.file == nullptr) return "the start of the kernel";
  return std::string(site.file) + ":" + std::to_string(site.line);
}

std::string NameIndex(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

constexpr const char* kVerbs[] = {"reads", "writes", "updates"};

}  // namespace

BlockExecutor& BlockExecutor::OfThisThread() {
  static thread_local std::unique_ptr<BlockExecutor> executor(new BlockExecutor);
  return *executor;
}

BlockExecutor::BlockExecutor()
    : stacks_(kMaxBlockThreads),
      threads_(kMaxBlockThreads),
      clocks_(kMaxBlockThreads / kLanes),
      warps_(kMaxBlockThreads / kLanes),
      races_(SharedMemory::kSpan) {
  for (int i = 0; i < kMaxBlockThreads; ++i) {
    thread(i).index = i;
    stacks_.Init(thread(i).fiber, i, sizeof(ThreadPlace));
  }
}

std::string BlockExecutor::RunGrid(const KernelLaunch& launch, int device, uint64_t seed) {
  launch_ = &launch;
  device_ = device;
  seed_ = seed;
  random_ = Random(seed);
  count_ = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  failure_.clear();
  shared_.StartLaunch(launch.shared_bytes);
  running.executor = this;
  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  // Every block once, in an order that differs between runs.
  uint64_t step = 1 + random_.Below(std::min<uint64_t>(blocks, 0xffffffff));
  while (std::gcd(step, blocks) != 1) ++step;
  uint64_t at = random_.Below(std::min<uint64_t>(blocks, 0xffffffff));
  for (uint64_t i = 0; i < blocks && failure_.empty(); ++i, at = (at + step) % blocks) {
    RunBlock({static_cast<unsigned>(at % launch.grid.x),
              static_cast<unsigned>(at / launch.grid.x % launch.grid.y),
              static_cast<unsigned>(at / launch.grid.x / launch.grid.y)});
  }
  for (int i = 0; i < count_; ++i) ForgetCopies(thread(i));
  running.executor = nullptr;
  return failure_;
}

void BlockExecutor::StartBlock(uint3 block) {
  block_ = block;
  shared_.StartBlock();
  races_.NextEpoch();
  ready_.clear();
  const dim3 dim = launch_->block;
  for (int i = 0; i < count_; ++i) {
    BlockThread& t = thread(i);
    const auto n = static_cast<unsigned>(i);
    *reinterpret_cast<ThreadPlace*>(t.fiber.reserved()) = {
        {n % dim.x, n / dim.x % dim.y, n / dim.x / dim.y}, block, dim, launch_->grid};
    t.state = BlockThread::State::kReady;
    t.last_site = {nullptr, 0};
    t.groups = 0;
    t.copies.clear();
    t.fiber.Start(&RunThread, &t);
    ready_.push_back(&t);
    if (t.lane() != 0) continue;
    clock(t.warp()).Reset();
    warps_[static_cast<size_t>(t.warp())].exited = 0;
    warps_[static_cast<size_t>(t.warp())].gatherings = 0;
  }
}

void BlockExecutor::RunThread(void* argument) {
  auto* t = static_cast<BlockThread*>(argument);
  const KernelLaunch& launch = *running.executor->launch_;
  running.checking = true;
  launch.run(launch.kernel, launch.arguments);
  running.checking = false;
  t->state = BlockThread::State::kExited;
  running.executor->warps_[static_cast<size_t>(t->warp())].exited |= 1u << t->lane();
}

void BlockExecutor::RunBlock(uint3 block) {
  StartBlock(block);
  while (failure_.empty()) {
    if (ready_.empty()) {
      if (!ReleaseBarrier()) return;
      continue;
    }
    const size_t pick = random_.Below(ready_.size());
    current_ = ready_[pick];
    ready_[pick] = ready_.back();
    ready_.pop_back();
    current_->fiber.Resume();
    running.checking = false;
    if (current_->state == BlockThread::State::kExited) ForgetCopies(*current_);
  }
}

void BlockExecutor::ForgetCopies(BlockThread& t) {
  for (const AsyncCopy& copy : t.copies) {
    races_.EndCopy(SharedOffset(copy.shared), 16, WhoIs(t));
  }
  t.copies.clear();
}

// Nobody can go on: all have ended (false), all are at one barrier, or something is wrong.
bool BlockExecutor::ReleaseBarrier() {
  int exited = 0;
  bool one_barrier = true;
  for (int i = 0; i < count_; ++i) {
    exited += thread(i).state == BlockThread::State::kExited;
    one_barrier = one_barrier && thread(i).state == BlockThread::State::kAtBarrier &&
                  SameSite(thread(i).waiting.site, thread(0).waiting.site);
  }
  if (exited == count_) return false;
  if (!one_barrier) {
    FailWhereStuck();
    return false;
  }
  races_.NextEpoch();
  for (int i = 0; i < count_; ++i) {
    thread(i).state = BlockThread::State::kReady;
    ready_.push_back(&thread(i));
  }
  return true;
}

void BlockExecutor::FailWhereStuck() {
  std::string where;
  const BlockThread* first = nullptr;
  int listed = 0;
  for (int i = 0; i < count_; ++i) {
    const BlockThread& t = thread(i);
    const bool exited = t.state == BlockThread::State::kExited;
    if (!exited && first == nullptr) first = &t;
    const BlockThread* before = i > 0 ? &threads_[static_cast<size_t>(i) - 1] : nullptr;
    const bool same = before != nullptr && before->state == t.state &&
                      (exited || SameSite(before->waiting.site, t.waiting.site));
    if (same || ++listed > 8) continue;
    where += std::string(where.empty() ? "" : "; ") + "from thread " + std::to_string(i) + " on " +
             (exited ? "they have exited"
                     : std::string("they wait in ") + t.waiting.name + " at " +
                           NamePlace(t.waiting.site));
  }
  failure_ = Describe("threads diverge, nobody can go on: " + where, first->waiting.site, first);
}

std::string BlockExecutor::NameThread(int index) const {
  const ThreadPlace& p = PlaceOf(threads_[static_cast<size_t>(index)]);
  return "thread " + NameIndex(p.thread.x, p.thread.y, p.thread.z) + " (lane " +
         std::to_string(index % kLanes) + " of warp " + std::to_string(index / kLanes) + ")";
}

std::string BlockExecutor::Describe(const std::string& what, Site site,
                                    const BlockThread* t) const {
  std::string text = "kernel " + SymbolName(launch_->kernel) + ", block " +
                     NameIndex(block_.x, block_.y, block_.z);
  if (t != nullptr) text += ", " + NameThread(t->index);
  if (site.file != nullptr) {
    text += ", at " + NamePlace(site);
  } else if (t != nullptr) {
    text += ", after " + NamePlace(t->last_site);
  }
  return text + ": " + what;
}

void BlockExecutor::Report(const std::string& what, Site site) {
  failure_ = Describe(what, site, current_);
}

void BlockExecutor::Leave() {
  current_->fiber.Suspend();
  __builtin_unreachable();
}

unsigned BlockExecutor::LanesOf(int warp) const {
  const int lanes = count_ - warp * kLanes;
  return lanes >= kLanes ? ~0u : (1u << lanes) - 1;
}

// The gathering that the running thread belongs to, a new one if there is none yet.
BlockExecutor::Gathering& BlockExecutor::Join(const Collective& collective, unsigned mask) {
  const BlockThread& self = *current_;
  Warp& warp = warps_[static_cast<size_t>(self.warp())];
  if ((mask & warp.exited) != 0) {
    Report(std::string(collective.name) + " waits for lane " +
               std::to_string(__builtin_ctz(mask & warp.exited)) + ", which has exited",
           collective.site);
    Leave();
  }
  for (int i = 0; i < warp.gatherings; ++i) {
    Gathering& gathering = warp.gathering[static_cast<size_t>(i)];
    if ((gathering.collective.mask >> self.lane() & 1) == 0) continue;
    const Collective& theirs = gathering.collective;
    if (theirs.mask == collective.mask && theirs.name == collective.name &&
        SameSite(theirs.site, collective.site)) {
      return gathering;
    }
    Report(std::string(collective.name) + " meets " + theirs.name + " of lane " +
               std::to_string(__builtin_ctz(gathering.arrived)) + " at " + NamePlace(theirs.site) +
               (theirs.mask != collective.mask ? " with another mask" : ""),
           collective.site);
    Leave();
  }
  // Lanes that it names may still be in a gathering of their own, and come here afterwards.
  Gathering& gathering = warp.gathering[static_cast<size_t>(warp.gatherings++)];
  gathering.collective = collective;
  gathering.arrived = 0;
  return gathering;
}

void BlockExecutor::Meet(const Collective& collective, void* operands, Complete complete) {
  BlockThread& self = *current_;
  const unsigned mask = collective.mask & LanesOf(self.warp());
  if ((mask >> self.lane() & 1) == 0) {
    Report("its mask does not name the caller", collective.site);
    Leave();
  }
  Gathering& gathering = Join(collective, mask);
  gathering.arrived |= 1u << self.lane();
  gathering.operands[static_cast<size_t>(self.lane())] = operands;
  if (gathering.arrived != mask) {
    self.waiting = collective;
    self.state = BlockThread::State::kAtCollective;
    self.fiber.Suspend();
  } else {
    if (complete != nullptr) complete(*this, mask, gathering.operands);
    for (unsigned rest = mask & ~(1u << self.lane()); rest != 0; rest &= rest - 1) {
      BlockThread& other = thread(self.warp() * kLanes + __builtin_ctz(rest));
      other.state = BlockThread::State::kReady;
      ready_.push_back(&other);
    }
    Warp& warp = warps_[static_cast<size_t>(self.warp())];
    gathering = warp.gathering[static_cast<size_t>(--warp.gatherings)];
  }
  self.last_site = collective.site;
}

void BlockExecutor::SyncThreads(Site site) {
  BlockThread& self = *current_;
  self.waiting = {"SyncThreads", site, ~0u};
  self.state = BlockThread::State::kAtBarrier;
  self.fiber.Suspend();
  self.last_site = site;
}

RaceShadow::Who BlockExecutor::WhoIs(const BlockThread& t) const {
  const WarpClock& warp = clocks_[static_cast<size_t>(t.warp())];
  return {t.index, warp.stamp(t.lane()), warp.known(t.lane())};
}

void BlockExecutor::Check(AccessKind kind, const void* p, size_t bytes, const BlockThread& t,
                          Site site) {
  if (IsShared(p)) {
    CheckShared(kind, p, bytes, t, site);
  } else if (!t.fiber.Contains(p)) {
    CheckElsewhere(kind, p, bytes, site);
  }
}

void BlockExecutor::CheckShared(AccessKind kind, const void* p, size_t bytes, const BlockThread& t,
                                Site site) {
  const size_t offset = SharedOffset(p);
  const char* verb = kVerbs[static_cast<int>(kind)];
  if (!shared_.Inside(offset, bytes)) {
    Report(std::string(verb) + " " + std::to_string(bytes) +
               " bytes that are not inside one array of shared memory",
           site);
    Leave();
  }
  if (races_.Access(kind, offset, bytes, WhoIs(t))) return;
  const RaceShadow::Conflict& conflict = races_.conflict();
  Report(std::string(verb) + " shared memory (" + shared_.Name(conflict.offset) + ") after " +
             conflict.earlier + " by " +
             (conflict.thread < 0 ? "threads of several warps" : NameThread(conflict.thread)) +
             " with no barrier between",
         site);
  Leave();
}

void BlockExecutor::CheckElsewhere(AccessKind kind, const void* p, size_t bytes, Site site) {
  const char* verb = kVerbs[static_cast<int>(kind)];
  if (DeviceMemory::Get().Holds(device_, p, bytes)) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto arguments = reinterpret_cast<uintptr_t>(launch_->arguments);
  const bool readable =
      (address >= arguments && address < arguments + launch_->argument_bytes) || IsReadOnlyData(p);
  if (kind == AccessKind::kRead && readable) return;
  Report(std::string(verb) + " " + std::to_string(bytes) + " bytes " +
             DeviceMemory::Get().Problem(device_, p, bytes),
         site);
  Leave();
}

void BlockExecutor::CheckAligned(const void* p, size_t bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(p) % bytes == 0) return;
  Report("an access of " + std::to_string(bytes) + " bytes is not aligned to them", site);
  Leave();
}

}  // namespace ringfill::cuda_emulation
