// One sequence of the scheduler: its tokens, what is missing of its KV, and its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/layout/placement.h"
#include "engine/schedule/span_set.h"
#include "engine/schedule/step_plan.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

struct SequenceSpec {
  SequenceId id = 0;
  std::vector<TokenId> prompt;
  int64_t max_new_tokens = 0;  // 0: prefill only
  bool score = false;
  // Where documents begin (documents.h): ascending positions of the prompt.
  std::vector<int64_t> document_starts;
  // KV that is there already, computed under the same document starts: positions of the prompt,
  // ascending and disjoint, and the pages that hold them under the placement this sequence will
  // have, in local order with gaps; [ranks] or empty. Spans may begin and end anywhere. Pages that
  // others hold too are read, never written: where the sequence would have to, it computes the
  // page's tokens into one of its own. A sequence to be scored starts from nothing.
  std::vector<Span> valid;
  std::vector<PageList> pages;
};

// Movable. Used by the scheduler alone.
class Sequence {
 public:
  // `allocators`: [ranks], of the ranks of `placement`.
  Sequence(SequenceSpec spec, std::shared_ptr<const Placement> placement, int page_tokens,
           std::span<const std::unique_ptr<PageAllocator>> allocators);

  SequenceId id() const { return spec_.id; }
  const SequenceSpec& spec() const { return spec_; }
  const Placement& placement() const { return *placement_; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(spec_.prompt.size()); }
  // Positions whose token is known.
  int64_t known_tokens() const { return prompt_tokens() + static_cast<int64_t>(generated_.size()); }
  TokenId Token(int64_t position) const;
  void Append(TokenId token);  // REQUIRES: nothing is missing

  // Known positions whose KV is not in the cache.
  const SpanSet& missing() const { return missing_; }
  // Those that chunks compute: all but the last generated token, which is for decode.
  SpanSet Holes() const;
  bool HasHoles() const;
  bool decodes() const;  // nothing but the last generated token is missing
  SpanSet Valid() const;
  // `spans` were computed. Returns how many of them had been before.
  int64_t MarkComputed(std::span<const Span> spans, bool scored);
  // `spans` may be half written: they will be computed again.
  void MarkTorn(std::span<const Span> spans);
  // Prompt positions below this are scored.
  int64_t scored_until() const { return scored_until_; }

  // Pages on `rank` that hold positions below `tokens`.
  int64_t PagesFor(int rank, int64_t tokens) const;
  // Has pages, no gaps, for positions below `tokens` after this, or RESOURCE_EXHAUSTED and no
  // change. Remembers the furthest.
  absl::Status ExtendTo(int64_t tokens);
  int64_t reserved_tokens() const { return reserved_; }
  BlockTable Table(int64_t tokens) const;  // REQUIRES: ExtendTo(tokens)
  const std::vector<PageList>& pages() const { return pages_; }
  // Lets go of all pages; everything known is missing.
  void DropPages();
  // The same, of a sequence that computed what they hold.
  void LosePages();
  // The same sequence on another ring: see Scheduler::Regroup. `allocators`: of the new ranks.
  // Returns what was valid and is lost.
  SpanSet MoveTo(std::shared_ptr<const Placement> placement, std::span<const int> from,
                 std::span<const std::unique_ptr<PageAllocator>> allocators);

  bool paused = false;

 private:
  void TakeValid();
  // Pages that others hold must not be written.
  void DropSharedPage(int rank, int64_t index);
  bool PagesAligned(const Placement& placement) const;

  SequenceSpec spec_;
  std::shared_ptr<const Placement> placement_;
  int page_tokens_;
  std::vector<TokenId> generated_;
  SpanSet missing_;
  SpanSet repair_;  // of missing_: had been computed, or begun
  int64_t scored_until_ = 0;
  int64_t reserved_ = 0;
  std::vector<PageList> pages_;  // [ranks]
};

}  // namespace ringfill
