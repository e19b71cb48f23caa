// Decides what the next step does: first come, first served. Pure and single-threaded: sequences
// and free pages in, a StepPlan out; no clock, no I/O, no lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

struct SchedulerOptions {
  int page_tokens = 64;
  int64_t pages_per_rank = 0;
  int64_t chunk_tokens = 2048;          // prompt tokens a step, over all sequences
  int64_t decode_reserve_tokens = 256;  // reserved beyond the prompt at admission, at most
  int64_t max_running = 64;
};

struct SequenceSpec {
  SequenceId id = 0;
  std::vector<TokenId> prompt;
  int64_t max_new_tokens = 0;  // 0: prefill only
  bool score = false;
};

// Used by the leader alone, except CheckFits.
class Scheduler {
 public:
  // `placement` must outlive the scheduler.
  Scheduler(const Placement& placement, const SchedulerOptions& options);

  // RESOURCE_EXHAUSTED with the numbers when the pool could never hold such a sequence.
  // Thread-safe.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_new_tokens) const;

  // Appends to the queue. REQUIRES: CheckFits passed, the id is new.
  void Enqueue(SequenceSpec spec);
  // Moves sequences from the queue's front to running while pages for the whole prompt and a decode
  // reserve can be had and none of those running waits for a page; returns them.
  std::vector<SequenceId> Admit();
  // Takes a sequence out, queued or running, and releases its pages; returns them, now free.
  // Unknown ids are ignored.
  BlockTable Remove(SequenceId id);

  // The next step: running prompts' chunks in order of arrival up to chunk_tokens, and one token of
  // every sequence that decodes, is not paused and has a page for it. Reserves what it needs.
  StepPlan Plan();
  // The plan was executed.
  void Commit(const StepPlan& plan);
  // The token that follows a sequence's last one. REQUIRES: prefilled.
  void AppendToken(SequenceId id, TokenId token);
  // Paused sequences are not decoded (their client does not read).
  void SetPaused(SequenceId id, bool paused);

  // Sequences that could not decode in the last Plan for want of a page, youngest last.
  const std::vector<SequenceId>& starved() const { return starved_; }

  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t pages_used(int rank) const { return allocators_[static_cast<size_t>(rank)]->used(); }
  int64_t pages_total() const { return options_.pages_per_rank; }
  // [ranks] pages that one running sequence holds.
  std::vector<int64_t> PagesOf(SequenceId id) const;

 private:
  struct Sequence {
    SequenceSpec spec;
    std::vector<TokenId> generated;
    int64_t computed = 0;  // positions whose KV is in the cache
    bool paused = false;
    std::vector<PageList> pages;  // [ranks]

    int64_t prompt_tokens() const { return static_cast<int64_t>(spec.prompt.size()); }
    bool prefilled() const { return computed >= prompt_tokens(); }
  };

  // Pages on `rank` that hold positions below `tokens`.
  int64_t PagesFor(int rank, int64_t tokens) const;
  int64_t ReservedTokens(int64_t prompt_tokens, int64_t max_new_tokens) const;
  absl::Status ExtendTo(Sequence& sequence, int64_t tokens);
  BlockTable TableOf(const Sequence& sequence, int64_t tokens) const;
  PrefillChunk MakeChunk(const Sequence& sequence, int64_t tokens) const;

  const Placement& placement_;
  const SchedulerOptions options_;
  std::vector<std::unique_ptr<PageAllocator>> allocators_;  // [ranks]
  std::deque<SequenceSpec> queue_;
  std::map<SequenceId, Sequence> running_;  // ids ascend with arrival
  std::vector<SequenceId> starved_;
  uint64_t step_ = 0;
};

}  // namespace ringfill
