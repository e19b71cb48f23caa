#include "engine/schedule/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {

Scheduler::Scheduler(std::vector<int> slot_map, int ranks, const SchedulerOptions& options,
                     const WayChooser& chooser)
    : options_(options), chooser_(chooser), slot_map_(std::move(slot_map)) {
  RF_CHECK(ranks >= 1 && options.page_tokens >= 1 && options.stripe_tokens >= 1);
  RF_CHECK(options.chunk_tokens >= 1 && options.max_running >= 1);
  RF_CHECK(!options.strict || options.layout != Layout::kTokenStripes);
  for (int r = 0; r < ranks; ++r) allocators_.push_back(NewAllocator());
  MutexLock lock(&ring_mutex_);
  ring_ = {slot_map_, ranks};
}

std::unique_ptr<PageAllocator> Scheduler::NewAllocator() const {
  auto allocator = std::make_unique<PageAllocator>(options_.pages_per_rank);
  if (options_.list_freed) allocator->NoteFreed();
  return allocator;
}

std::shared_ptr<const Placement> Scheduler::PlacementFor(int64_t prompt_tokens) {
  PlacementSpec spec = MakePlacement(options_.layout, slot_map_, options_.stripe_tokens,
                                     options_.page_tokens, prompt_tokens);
  if (last_placement_ == nullptr || last_placement_->ranks() != ranks() ||
      last_placement_->spec() != spec) {
    last_placement_ = std::make_shared<const Placement>(ranks(), std::move(spec));
  }
  return last_placement_;
}

int64_t Scheduler::ReservedTokens(int64_t prompt_tokens, int64_t max_new_tokens) const {
  // The last generated token's KV is never needed.
  return prompt_tokens +
         std::max<int64_t>(0, std::min(max_new_tokens - 1, options_.decode_reserve_tokens));
}

int64_t Scheduler::AdmissionTokens(const Sequence& sequence) const {
  return std::max(ReservedTokens(sequence.prompt_tokens(), sequence.spec().max_new_tokens),
                  sequence.known_tokens());
}

absl::Status Scheduler::CheckPool(const Placement& placement, int64_t tokens) const {
  for (int r = 0; r < placement.ranks(); ++r) {
    const int64_t needed = placement.PagesBefore(r, tokens, options_.page_tokens);
    if (needed > options_.pages_per_rank) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the request needs ", needed, " KV pages on rank ", r, " for ", tokens,
          " tokens (prompt and decode reserve), the pool holds ", options_.pages_per_rank,
          "; send a shorter prompt or raise kv.memory_bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckFits(int64_t prompt_tokens, int64_t max_new_tokens) const {
  Ring ring;
  {
    MutexLock lock(&ring_mutex_);
    ring = ring_;
  }
  const Placement placement(ring.ranks,
                            MakePlacement(options_.layout, ring.slot_map, options_.stripe_tokens,
                                          options_.page_tokens, prompt_tokens));
  return CheckPool(placement, ReservedTokens(prompt_tokens, max_new_tokens));
}

void Scheduler::Enqueue(SequenceSpec spec) {
  auto placement = PlacementFor(static_cast<int64_t>(spec.prompt.size()));
  queue_.emplace_back(std::move(spec), std::move(placement), options_.page_tokens, allocators_);
}

std::vector<SequenceId> Scheduler::Admit() {
  RF_CHECK(unfit_.empty());
  std::vector<SequenceId> admitted;
  // Pages that come free belong to running sequences first.
  if (!starved_.empty()) return admitted;
  while (!queue_.empty() && running() < options_.max_running) {
    Sequence& next = queue_.front();
    const int64_t tokens = AdmissionTokens(next);
    bool fits = next.ExtendTo(tokens).ok();
    // Pages that wait in the queue are a gain, no claim: nothing may wait for them for ever.
    for (size_t i = queue_.size(); !fits && running_.empty() && i-- > 1;) {
      queue_[i].DropPages();
      fits = next.ExtendTo(tokens).ok();
    }
    if (!fits) break;
    const SequenceId id = next.id();
    RF_CHECK(running_.empty() || id > running_.rbegin()->first);
    running_.emplace(id, std::move(next));
    queue_.pop_front();
    admitted.push_back(id);
  }
  return admitted;
}

void Scheduler::Remove(SequenceId id) {
  running_.erase(id);
  unfit_.erase(id);
  std::erase_if(queue_, [id](const Sequence& sequence) { return sequence.id() == id; });
}

void Scheduler::Commit(const StepPlan& plan) {
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto it = running_.find(chunk.sequence);
    if (it == running_.end()) continue;
    recomputed_ += it->second.MarkComputed(chunk.spans, chunk.score);
  }
  for (const DecodeToken& decode : plan.decodes) {
    const auto it = running_.find(decode.sequence);
    if (it == running_.end()) continue;
    const Span span = {decode.position, decode.position + 1};
    recomputed_ += it->second.MarkComputed({&span, 1}, false);
  }
}

void Scheduler::Abandon(const StepPlan& plan) {
  const auto mark = [this](SequenceId id, std::span<const Span> spans) {
    const auto it = running_.find(id);
    if (it != running_.end()) it->second.MarkTorn(spans);
  };
  for (const PrefillChunk& chunk : plan.chunks) mark(chunk.sequence, chunk.spans);
  for (const DecodeToken& decode : plan.decodes) {
    const Span span = {decode.position, decode.position + 1};
    mark(decode.sequence, {&span, 1});
  }
}

void Scheduler::AppendToken(SequenceId id, TokenId token) {
  const auto it = running_.find(id);
  RF_CHECK(it != running_.end());
  it->second.Append(token);
}

void Scheduler::SetPaused(SequenceId id, bool paused) {
  const auto it = running_.find(id);
  if (it != running_.end()) it->second.paused = paused;
  for (Sequence& sequence : queue_) {
    if (sequence.id() == id) sequence.paused = paused;  // it ran before
  }
}

std::vector<int64_t> Scheduler::PagesOf(SequenceId id) const {
  std::vector<int64_t> out;
  const auto it = running_.find(id);
  if (it == running_.end()) return out;
  for (const PageList& list : it->second.pages()) out.push_back(list.size());
  return out;
}

int64_t Scheduler::PromptMissing(SequenceId id) const {
  const auto it = running_.find(id);
  if (it == running_.end()) return -1;
  return it->second.missing().SizeBelow(it->second.prompt_tokens());
}

std::vector<PageList> Scheduler::SharePages(SequenceId id) const {
  std::vector<PageList> shared;
  for (const PageList& list : running_.at(id).pages()) shared.push_back(list.Fork());
  return shared;
}

std::vector<Span> Scheduler::ValidSpans(SequenceId id) const {
  return running_.at(id).Valid().spans();
}

}  // namespace ringfill
