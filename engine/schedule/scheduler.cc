#include "engine/schedule/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {

Scheduler::Scheduler(const Placement& placement, const SchedulerOptions& options)
    : placement_(placement), options_(options) {
  for (int r = 0; r < placement.ranks(); ++r) {
    allocators_.push_back(std::make_unique<PageAllocator>(options.pages_per_rank));
  }
}

int64_t Scheduler::PagesFor(int rank, int64_t tokens) const {
  return (placement_.TokensBefore(rank, tokens) + options_.page_tokens - 1) / options_.page_tokens;
}

int64_t Scheduler::ReservedTokens(int64_t prompt_tokens, int64_t max_new_tokens) const {
  // The last generated token's KV is never needed.
  return prompt_tokens +
         std::max<int64_t>(0, std::min(max_new_tokens - 1, options_.decode_reserve_tokens));
}

absl::Status Scheduler::CheckFits(int64_t prompt_tokens, int64_t max_new_tokens) const {
  const int64_t tokens = ReservedTokens(prompt_tokens, max_new_tokens);
  for (int r = 0; r < placement_.ranks(); ++r) {
    const int64_t needed = PagesFor(r, tokens);
    if (needed > options_.pages_per_rank) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the request needs ", needed, " KV pages on rank ", r, " for ", tokens,
          " tokens (prompt and decode reserve), the pool holds ", options_.pages_per_rank,
          "; send a shorter prompt or raise kv.memory_bytes"));
    }
  }
  return absl::OkStatus();
}

void Scheduler::Enqueue(SequenceSpec spec) { queue_.push_back(std::move(spec)); }

absl::Status Scheduler::ExtendTo(Sequence& sequence, int64_t tokens) {
  // Check all ranks first, so that a failure takes nothing.
  for (int r = 0; r < placement_.ranks(); ++r) {
    const int64_t more = PagesFor(r, tokens) - sequence.pages[static_cast<size_t>(r)].size();
    if (more > allocators_[static_cast<size_t>(r)]->free()) {
      return absl::ResourceExhaustedError(absl::StrCat("rank ", r, " has too few free KV pages"));
    }
  }
  for (int r = 0; r < placement_.ranks(); ++r) {
    PageList& list = sequence.pages[static_cast<size_t>(r)];
    const int64_t more = PagesFor(r, tokens) - list.size();
    if (more > 0) RF_RETURN_IF_ERROR(list.Extend(more));
  }
  return absl::OkStatus();
}

std::vector<SequenceId> Scheduler::Admit() {
  std::vector<SequenceId> admitted;
  // Pages that come free belong to running sequences first.
  if (!starved_.empty()) return admitted;
  while (!queue_.empty() && running() < options_.max_running) {
    const SequenceSpec& spec = queue_.front();
    Sequence sequence;
    for (auto& allocator : allocators_) sequence.pages.emplace_back(allocator.get());
    const int64_t tokens =
        ReservedTokens(static_cast<int64_t>(spec.prompt.size()), spec.max_new_tokens);
    if (!ExtendTo(sequence, tokens).ok()) break;
    const SequenceId id = spec.id;
    sequence.spec = std::move(queue_.front());
    queue_.pop_front();
    running_.emplace(id, std::move(sequence));
    admitted.push_back(id);
  }
  return admitted;
}

BlockTable Scheduler::Remove(SequenceId id) {
  BlockTable freed;
  const auto it = running_.find(id);
  if (it != running_.end()) {
    for (const PageList& list : it->second.pages) {
      freed.emplace_back(list.pages().begin(), list.pages().end());
    }
    running_.erase(it);
  }
  std::erase_if(queue_, [id](const SequenceSpec& spec) { return spec.id == id; });
  return freed;
}

BlockTable Scheduler::TableOf(const Sequence& sequence, int64_t tokens) const {
  BlockTable table;
  for (int r = 0; r < placement_.ranks(); ++r) {
    const auto pages = sequence.pages[static_cast<size_t>(r)].pages();
    const auto count = static_cast<size_t>(PagesFor(r, tokens));
    RF_CHECK(count <= pages.size());
    table.emplace_back(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count));
  }
  return table;
}

PrefillChunk Scheduler::MakeChunk(const Sequence& sequence, int64_t tokens) const {
  PrefillChunk chunk;
  chunk.sequence = sequence.spec.id;
  chunk.begin = sequence.computed;
  chunk.end = sequence.computed + tokens;
  const auto begin = sequence.spec.prompt.begin() + static_cast<ptrdiff_t>(chunk.begin);
  chunk.tokens.assign(begin, begin + static_cast<ptrdiff_t>(tokens));
  chunk.pages = TableOf(sequence, chunk.end);
  const bool last = chunk.end == sequence.prompt_tokens();
  chunk.wants_logits = last && sequence.spec.max_new_tokens > 0;
  chunk.score = sequence.spec.score;
  if (chunk.score) {
    chunk.targets.assign(begin + 1, begin + static_cast<ptrdiff_t>(tokens) + (last ? 0 : 1));
  }
  return chunk;
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  plan.step = ++step_;
  starved_.clear();
  int64_t budget = options_.chunk_tokens;
  for (auto& [id, sequence] : running_) {
    if (!sequence.prefilled()) {
      if (budget == 0 || plan.chunks.size() == kMaxChunksPerStep) continue;
      const int64_t tokens = std::min(budget, sequence.prompt_tokens() - sequence.computed);
      plan.chunks.push_back(MakeChunk(sequence, tokens));
      budget -= tokens;
      continue;
    }
    if (sequence.paused || sequence.generated.empty()) continue;
    const int64_t position = sequence.computed;
    if (!ExtendTo(sequence, position + 1).ok()) {
      starved_.push_back(id);
      continue;
    }
    plan.decodes.push_back(
        {id, position, sequence.generated.back(), TableOf(sequence, position + 1)});
  }
  return plan;
}

void Scheduler::Commit(const StepPlan& plan) {
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto it = running_.find(chunk.sequence);
    if (it != running_.end()) it->second.computed = chunk.end;
  }
  for (const DecodeToken& decode : plan.decodes) {
    const auto it = running_.find(decode.sequence);
    if (it != running_.end()) it->second.computed = decode.position + 1;
  }
}

void Scheduler::AppendToken(SequenceId id, TokenId token) {
  const auto it = running_.find(id);
  RF_CHECK(it != running_.end() && it->second.prefilled());
  it->second.generated.push_back(token);
}

void Scheduler::SetPaused(SequenceId id, bool paused) {
  const auto it = running_.find(id);
  if (it != running_.end()) it->second.paused = paused;
}

std::vector<int64_t> Scheduler::PagesOf(SequenceId id) const {
  std::vector<int64_t> out;
  const auto it = running_.find(id);
  if (it == running_.end()) return out;
  for (const PageList& list : it->second.pages) out.push_back(list.size());
  return out;
}

}  // namespace ringfill
