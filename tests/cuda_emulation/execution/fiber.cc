#include "tests/cuda_emulation/execution/fiber.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>

#include "base/check.h"
#include "tests/cuda_emulation/execution/address_sanitizer.h"

namespace ringfill::cuda_emulation {
namespace {

namespace context = boost::context::detail;

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = kAddressSanitizer ? 256 * 1024 : 128 * 1024;
constexpr size_t kSlotBytes = kStackBytes + kPage;
constexpr size_t kStaggerSteps = 29;
constexpr size_t kStaggerBytes = 128;

}  // namespace

struct Fiber::Switch {
  static void Enter(context::transfer_t from) {
    auto* self = static_cast<Fiber*>(from.data);
    FinishSwitch(nullptr, &self->owner_stack_, &self->owner_bytes_);
    self->owner_ = from.fctx;
    self->entry_(self->argument_);
    self->done_ = true;
    void* ended = nullptr;
    StartSwitch(&ended, self->owner_stack_, self->owner_bytes_);
    context::jump_fcontext(self->owner_, nullptr);
    RF_CHECK(false);  // an ended fiber was resumed
  }
};

void Fiber::Init(std::byte* stack, size_t bytes, size_t reserved) {
  stack_ = stack;
  bytes_ = bytes;
  reserved_ = (reserved + 63) / 64 * 64;
}

void Fiber::Start(Entry entry, void* argument) {
  // What an abandoned function left poisoned, or whatever had this memory before; a function that
  // returned cleaned up behind itself.
  if (!started_ || !done_) Unpoison(stack_, bytes_ - reserved_);
  entry_ = entry;
  argument_ = argument;
  started_ = true;
  done_ = false;
  context_ = context::make_fcontext(reserved(), bytes_ - reserved_, &Switch::Enter);
}

void Fiber::Resume() {
  void* fake_stack = nullptr;
  StartSwitch(&fake_stack, stack_, bytes_ - reserved_);
  const context::transfer_t back = context::jump_fcontext(context_, this);
  FinishSwitch(fake_stack, nullptr, nullptr);
  context_ = back.fctx;
}

void Fiber::Suspend() {
  void* fake_stack = nullptr;
  StartSwitch(&fake_stack, owner_stack_, owner_bytes_);
  const context::transfer_t back = context::jump_fcontext(owner_, nullptr);
  FinishSwitch(fake_stack, &owner_stack_, &owner_bytes_);
  owner_ = back.fctx;
}

FiberStacks::FiberStacks(int count) : bytes_(static_cast<size_t>(count) * kSlotBytes + kPage) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RF_CHECK(memory != MAP_FAILED);
  memory_ = static_cast<std::byte*>(memory);
  for (int i = 0; i <= count; ++i) {
    RF_CHECK(mprotect(memory_ + static_cast<size_t>(i) * kSlotBytes, kPage, PROT_NONE) == 0);
  }
}

FiberStacks::~FiberStacks() { munmap(memory_, bytes_); }

void FiberStacks::Init(Fiber& fiber, int index, size_t reserved) const {
  const auto i = static_cast<size_t>(index);
  fiber.Init(memory_ + i * kSlotBytes + kPage, kStackBytes - i % kStaggerSteps * kStaggerBytes,
             reserved);
}

}  // namespace ringfill::cuda_emulation
