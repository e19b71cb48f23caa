// What goes into a step: Scheduler::Plan and its parts.
#include <algorithm>

#include "base/check.h"
#include "engine/schedule/documents.h"
#include "engine/schedule/scheduler.h"

namespace ringfill {
namespace {

// Ends `spans` on a multiple of `unit` inside their last span, unless that gives up more than half
// of them. Returns whether it did.
bool CutAtMultiple(int64_t unit, SpanSet& spans) {
  const Span last = spans.spans().back();
  const int64_t end = last.end / unit * unit;
  if (end <= last.begin || 2 * (last.end - end) > spans.size()) return false;
  spans.Remove({end, last.end});
  return true;
}

}  // namespace

StepPlan Scheduler::Plan() {
  RF_CHECK(unfit_.empty());
  StepPlan plan;
  plan.step = ++step_;
  plan.ranks = ranks();
  starved_.clear();
  PlanDecodes(plan);
  PlanChunks(plan);
  if (options_.list_freed && !plan.empty()) {
    for (auto& allocator : allocators_) plan.freed.push_back(allocator->TakeFreed());
  }
  return plan;
}

int Scheduler::PlacementIndex(const Sequence& sequence, StepPlan& plan) const {
  const PlacementSpec& spec = sequence.placement().spec();
  const auto it = std::find(plan.placements.begin(), plan.placements.end(), spec);
  const auto index = static_cast<int>(it - plan.placements.begin());
  if (it == plan.placements.end()) plan.placements.push_back(spec);
  return index;
}

void Scheduler::PlanDecodes(StepPlan& plan) {
  std::vector<Sequence*> ready;
  bool prefilling = false;
  for (auto& [id, sequence] : running_) {
    prefilling |= sequence.HasHoles();
    if (sequence.decodes() && !sequence.paused) ready.push_back(&sequence);
  }
  const size_t places =
      options_.strict ? kMaxChunksPerStep - (prefilling ? 1 : 0) : kMaxDecodesPerStep;
  if (ready.size() > places) {
    // They take turns, beginning behind the one that came last.
    const auto next = std::find_if(ready.begin(), ready.end(), [this](const Sequence* sequence) {
      return sequence->id() > last_decoded_;
    });
    std::rotate(ready.begin(), next, ready.end());
    ready.resize(places);
    last_decoded_ = ready.back()->id();
    std::sort(ready.begin(), ready.end(),
              [](const Sequence* a, const Sequence* b) { return a->id() < b->id(); });
  }
  for (Sequence* sequence : ready) {
    const int64_t position = sequence->known_tokens() - 1;
    if (!sequence->ExtendTo(position + 1).ok()) {
      starved_.push_back(sequence->id());
      continue;
    }
    if (options_.strict) {
      plan.chunks.push_back(MakeChunk(*sequence, SpanSet({position, position + 1}), plan));
      continue;
    }
    plan.decodes.push_back(
        {.sequence = sequence->id(),
         .position = position,
         .token = sequence->Token(position),
         .placement = PlacementIndex(*sequence, plan),
         .pages = sequence->Table(position + 1),
         .document_start = DocumentStart(sequence->spec().document_starts, position)});
  }
}

void Scheduler::PlanChunks(StepPlan& plan) {
  int64_t budget = options_.chunk_tokens;
  for (auto& [id, sequence] : running_) {
    if (budget == 0 || plan.chunks.size() == kMaxChunksPerStep) return;
    if (!sequence.HasHoles()) continue;
    const SpanSet spans = NextSpans(sequence, budget);
    if (spans.empty()) continue;
    plan.chunks.push_back(MakeChunk(sequence, spans, plan));
    budget -= static_cast<int64_t>(plan.chunks.back().tokens.size());
  }
}

SpanSet Scheduler::NextSpans(const Sequence& sequence, int64_t budget) const {
  SpanSet holes = sequence.Holes();
  // What was scored before is computed without being scored again.
  if (sequence.spec().score && holes.front() < sequence.scored_until()) {
    holes = holes.Within({0, sequence.scored_until()});
  }
  if (options_.strict) {
    const int64_t cut = (holes.front() / options_.chunk_tokens + 1) * options_.chunk_tokens;
    holes = holes.Within({0, cut});
    return holes.size() <= budget ? holes : SpanSet();
  }
  if (holes.size() <= budget) return holes;
  const int64_t stripe = sequence.placement().stripe_tokens();
  // What others left of the budget may be too little to be worth a chunk.
  if (budget < std::min<int64_t>(stripe, options_.chunk_tokens)) return {};
  SpanSet spans = holes.First(budget);
  if (!CutAtMultiple(2 * ranks() * stripe, spans)) CutAtMultiple(stripe, spans);
  return spans;
}

PrefillChunk Scheduler::MakeChunk(const Sequence& sequence, SpanSet spans, StepPlan& plan) const {
  PrefillChunk chunk;
  chunk.sequence = sequence.id();
  chunk.placement = PlacementIndex(sequence, plan);
  const int64_t first = spans.front();
  chunk.score =
      sequence.spec().score && first >= sequence.scored_until() && first < sequence.prompt_tokens();
  const auto fill = [&] {
    chunk.spans = spans.spans();
    chunk.tokens.clear();
    chunk.targets.clear();
    for (const Span& span : chunk.spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        chunk.tokens.push_back(sequence.Token(p));
        if (chunk.score && p + 1 < sequence.prompt_tokens()) {
          chunk.targets.push_back(sequence.Token(p + 1));
        }
      }
    }
    chunk.pages = sequence.Table(chunk.end());
    chunk.document_starts = StartsOf(sequence.spec().document_starts, chunk.spans);
    chunk.wants_logits =
        sequence.spec().max_new_tokens > 0 && chunk.end() == sequence.known_tokens();
  };
  fill();
  if (options_.strict) {
    chunk.mode = TokenMode::kHome;
    chunk.strategy = RingStrategy::kOrdered;
    return chunk;
  }
  Way way = chooser_.Choose(chunk, plan.placements[static_cast<size_t>(chunk.placement)], ranks());
  // Scores need rows of one rank each.
  if (chunk.score && way.mode == TokenMode::kReplicated) way.mode = TokenMode::kDealt;
  chunk.mode = way.mode;
  chunk.strategy = way.strategy;
  if (way.mode == TokenMode::kReplicated && spans.size() > kMaxReplicatedTokens) {
    spans = spans.First(kMaxReplicatedTokens);
    fill();
  }
  return chunk;
}

}  // namespace ringfill
