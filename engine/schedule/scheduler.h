// Decides what the next step does: first come, first served. Pure and single-threaded: sequences
// and free pages in, a StepPlan out; no clock, no I/O.
//
// What a sequence still needs is a set of missing positions: its whole prompt at first, less when
// it starts over pages that are there already, holes when pages are lost. They are computed in
// ascending order, chunk by chunk, so that whatever a token attends to exists before it; once none
// is left below its last token, the sequence decodes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/layout/layouts.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_plan.h"
#include "engine/schedule/way_chooser.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

struct SchedulerOptions {
  Layout layout = Layout::kSnake;
  int stripe_tokens = 64;
  int page_tokens = 64;
  int64_t pages_per_rank = 0;
  int64_t chunk_tokens = 2048;          // prompt tokens a step, over all sequences
  int64_t decode_reserve_tokens = 256;  // reserved beyond the prompt at admission, at most
  int64_t max_running = 64;
  // Equal bits whatever else runs: chunks are cut at multiples of chunk_tokens alone, computed at
  // home in the ordered strategy, and decodes are chunks of one token. Not for token stripes.
  bool strict = false;
  bool list_freed = false;  // StepPlan::freed
};

// What a new ring kept and lost.
struct Regrouped {
  struct Loss {
    SequenceId id = 0;
    std::vector<Span> spans;  // were in the cache, will be computed again
  };
  std::vector<Loss> lost;  // of running and queued sequences that lost anything, by id
  // The youngest of those that ran, when the new ring cannot hold all: they made room for the older
  // ones, hold no pages any more, and wait at the queue's front with what they have generated.
  std::vector<SequenceId> requeued;
  // Sequences that the new ring can never hold, oldest first. They hold no pages any more and are
  // to be removed before anything else is asked of the scheduler.
  std::vector<SequenceId> unfit;
};

// Used by the leader alone, except CheckFits.
class Scheduler {
 public:
  // `chooser` says how chunks are computed, unless strict; it must outlive the scheduler.
  Scheduler(std::vector<int> slot_map, int ranks, const SchedulerOptions& options,
            const WayChooser& chooser);

  // RESOURCE_EXHAUSTED with the numbers when the pool could never hold such a sequence.
  // Thread-safe.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_new_tokens) const;

  // Appends to the queue. REQUIRES: CheckFits passed, the id is above all before.
  void Enqueue(SequenceSpec spec);
  // Moves sequences from the queue's front to running while pages for the whole prompt and a decode
  // reserve (or for what it has generated, when it ran before) can be had and none of those running
  // waits for a page; returns them.
  std::vector<SequenceId> Admit();
  // Takes a sequence out, queued or running, and releases its pages. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step: chunks of what running sequences miss, in order of arrival, up to chunk_tokens
  // and cut where ranks stay balanced, and one token of every sequence that decodes, is not paused
  // and has a page for it. Reserves what it needs. StepPlan::epoch is the caller's to set.
  StepPlan Plan();
  // The plan was executed, except for chunks that the caller took out. Sequences that were removed
  // since it was made are passed over, here and in Abandon: their pages are gone with what the step
  // wrote.
  void Commit(const StepPlan& plan);
  // The plan's step failed: what it was to write may be half written, and counts as not computed.
  void Abandon(const StepPlan& plan);
  // The token that follows a sequence's last one. REQUIRES: nothing of it is missing.
  void AppendToken(SequenceId id, TokenId token);
  // Paused sequences are not decoded (their client does not read).
  void SetPaused(SequenceId id, bool paused);

  // Moves everything to the ring of a new epoch, after a failed step (which is abandoned) or
  // between steps, to let newcomers in. from[r]: see Workers::Reform. Pages stay where they are
  // when their new rank is the old one; the others are made anew and what they held is missing.
  // Where stripes are no whole pages nothing stays, unless no rank has changed.
  // REQUIRES: nobody else holds lists of this scheduler's pages.
  Regrouped Regroup(std::span<const int> from, std::vector<int> slot_map);

  // Sequences that could not decode in the last Plan for want of a page, youngest last.
  const std::vector<SequenceId>& starved() const { return starved_; }

  int ranks() const { return static_cast<int>(allocators_.size()); }
  const std::vector<int>& slot_map() const { return slot_map_; }
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t pages_used(int rank) const { return allocators_[static_cast<size_t>(rank)]->used(); }
  int64_t pages_total() const { return options_.pages_per_rank; }
  // [ranks] pages that one running sequence holds; empty when it does not run.
  std::vector<int64_t> PagesOf(SequenceId id) const;
  // Positions of a running sequence's prompt that are not in the cache; -1 when it does not run.
  int64_t PromptMissing(SequenceId id) const;
  // Tokens computed a second time because a ring lost them or a step failed.
  int64_t recomputed_tokens() const { return recomputed_; }

  // What another sequence with the same beginning can start from: its pages, each with one more
  // reference, and the positions that are in them. REQUIRES: it runs.
  std::vector<PageList> SharePages(SequenceId id) const;
  std::vector<Span> ValidSpans(SequenceId id) const;

 private:
  struct Ring {
    std::vector<int> slot_map;
    int ranks = 0;
  };

  std::unique_ptr<PageAllocator> NewAllocator() const;
  std::shared_ptr<const Placement> PlacementFor(int64_t prompt_tokens);
  int64_t ReservedTokens(int64_t prompt_tokens, int64_t max_new_tokens) const;
  // What it needs pages for to run.
  int64_t AdmissionTokens(const Sequence& sequence) const;
  absl::Status CheckPool(const Placement& placement, int64_t tokens) const;

  // plan.cc
  void PlanDecodes(StepPlan& plan);
  void PlanChunks(StepPlan& plan);
  SpanSet NextSpans(const Sequence& sequence, int64_t budget) const;
  PrefillChunk MakeChunk(const Sequence& sequence, SpanSet spans, StepPlan& plan) const;
  int PlacementIndex(const Sequence& sequence, StepPlan& plan) const;

  // regroup.cc
  void FitRunning();
  std::vector<SequenceId> Requeue();

  const SchedulerOptions options_;
  const WayChooser& chooser_;
  std::vector<int> slot_map_;
  std::vector<std::unique_ptr<PageAllocator>> allocators_;  // [ranks]
  std::shared_ptr<const Placement> last_placement_;         // most sequences have the same one
  std::deque<Sequence> queue_;
  std::map<SequenceId, Sequence> running_;  // ids ascend with arrival
  std::vector<SequenceId> starved_;
  std::set<SequenceId> unfit_;   // named by Regroup and still here
  SequenceId last_decoded_ = 0;  // of a step that had no place for all
  uint64_t step_ = 0;
  int64_t recomputed_ = 0;

  mutable Mutex ring_mutex_;
  Ring ring_ ABSL_GUARDED_BY(ring_mutex_);
};

}  // namespace ringfill
