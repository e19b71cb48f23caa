// cp.async: a copy lands when it is issued or only when it is waited for, drawn anew for each.
#include <algorithm>
#include <cstring>

#include "tests/cuda_emulation/execution/block.h"

namespace ringfill::cuda_emulation {
namespace {

constexpr int kCopyBytes = 16;

void Land(AsyncCopy& copy) {
  if (copy.landed) return;
  copy.landed = true;
  std::memcpy(copy.shared, copy.device, static_cast<size_t>(copy.bytes));
  std::memset(copy.shared + copy.bytes, 0, static_cast<size_t>(kCopyBytes - copy.bytes));
}

}  // namespace

void CpAsync16(void* shared, const void* device, int bytes, Site site) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  BlockThread& thread = executor.thread();
  executor.CheckAligned(shared, kCopyBytes, site);
  executor.CheckAligned(device, kCopyBytes, site);
  const char* problem = bytes < 0 || bytes > kCopyBytes
                            ? "copies fewer than 0 or more than 16 bytes"
                        : !executor.IsShared(shared) ? "copies to what is not shared memory"
                        : executor.IsShared(device)  ? "copies from shared memory"
                                                     : nullptr;
  if (problem != nullptr) {
    executor.Report(problem, site);
    executor.Leave();
  }
  // The source is not read at all when nothing is copied.
  if (bytes > 0) {
    executor.Check(AccessKind::kRead, device, static_cast<size_t>(bytes), thread, site);
  }
  executor.Check(AccessKind::kWrite, shared, kCopyBytes, thread, site);
  executor.races().BeginCopy(executor.SharedOffset(shared), kCopyBytes, executor.WhoIs(thread));
  thread.copies.push_back(
      {static_cast<unsigned char*>(shared), device, bytes, thread.groups, false});
  if (executor.random().Coin()) Land(thread.copies.back());
}

void CpAsyncCommit() {
  const InLibrary in_library;
  ++running.executor->thread().groups;
}

void CpAsyncWait(int groups) {
  const InLibrary in_library;
  BlockExecutor& executor = *running.executor;
  BlockThread& thread = executor.thread();
  // Copies that were never committed are in no group: nothing waits for them.
  const auto waited = [&](const AsyncCopy& copy) { return copy.group < thread.groups - groups; };
  for (AsyncCopy& copy : thread.copies) {
    if (!waited(copy)) continue;
    Land(copy);
    executor.races().EndCopy(executor.SharedOffset(copy.shared), kCopyBytes,
                             executor.WhoIs(thread));
  }
  thread.copies.erase(std::remove_if(thread.copies.begin(), thread.copies.end(), waited),
                      thread.copies.end());
}

}  // namespace ringfill::cuda_emulation
