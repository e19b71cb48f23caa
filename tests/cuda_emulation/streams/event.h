// Events. Recording gives an event a new mark, which a task in the stream sets; waits hold on to
// the mark that was the event's when they were queued.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "tests/cuda_emulation/streams/task.h"

namespace ringfill::cuda_emulation {

struct Mark {
  std::atomic<bool> done{false};
  std::chrono::steady_clock::time_point when;  // valid once done

  void Set() {
    when = std::chrono::steady_clock::now();
    done.store(true, std::memory_order_release);
  }
};

struct Capture;

}  // namespace ringfill::cuda_emulation

// Guarded by the runtime's lock.
struct CUevent_st {
  int device = 0;
  bool timing = true;
  std::shared_ptr<ringfill::cuda_emulation::Mark> mark;  // null: never recorded
  // Recorded while capturing: the nodes that it stands for.
  std::shared_ptr<ringfill::cuda_emulation::Capture> capture;
  std::vector<size_t> captured_nodes;
};
