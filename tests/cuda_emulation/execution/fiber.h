// A stack and the function that runs on it, switched to and from in a few nanoseconds
// (Boost.Context). Stays on the OS thread that resumes it. A fiber that is never resumed again is
// simply abandoned: nothing on its stack is destroyed.
#pragma once

#include <cstddef>

namespace ringfill::cuda_emulation {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  // [stack, stack + bytes) outlives the fiber. The topmost `reserved` bytes are left to the caller.
  void Init(std::byte* stack, size_t bytes, size_t reserved);
  // The next Resume calls `entry`; what ran before is abandoned.
  void Start(Entry entry, void* argument);
  // Runs the fiber until it suspends or its entry returns. Called by whoever schedules.
  void Resume();
  // Back to who resumed. Called on the fiber.
  void Suspend();

  bool done() const { return done_; }
  bool Contains(const void* p) const {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - stack_) < bytes_;
  }
  std::byte* reserved() const { return stack_ + bytes_ - reserved_; }

 private:
  struct Switch;
  std::byte* stack_ = nullptr;
  size_t bytes_ = 0;
  size_t reserved_ = 0;
  void* context_ = nullptr;  // where to go on, while suspended
  void* owner_ = nullptr;    // where to return to, while running
  const void* owner_stack_ = nullptr;
  size_t owner_bytes_ = 0;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool started_ = false;
  bool done_ = true;
};

// Stacks for `count` fibers, with unmapped pages between them. Their tops differ in their offset
// within a page: equal ones would share the same few lines of the first-level cache.
class FiberStacks {
 public:
  explicit FiberStacks(int count);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;
  void Init(Fiber& fiber, int index, size_t reserved) const;

 private:
  std::byte* memory_;
  size_t bytes_;
};

}  // namespace ringfill::cuda_emulation
