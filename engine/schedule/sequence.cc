#include "engine/schedule/sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

// Calls fn(rank, page, span) for the pieces of `span` that lie in one page and one stripe.
template <typename Fn>
void ForEachRun(const Placement& placement, int page_tokens, Span span, Fn fn) {
  const int64_t stripe_tokens = placement.stripe_tokens();
  for (int64_t p = span.begin; p < span.end;) {
    const int rank = placement.Home(p);
    const int64_t local = placement.LocalToken(p);
    const int64_t end = std::min(
        {span.end, (p / stripe_tokens + 1) * stripe_tokens, p + page_tokens - local % page_tokens});
    fn(rank, local / page_tokens, Span{p, end});
    p = end;
  }
}

}  // namespace

Sequence::Sequence(SequenceSpec spec, std::shared_ptr<const Placement> placement, int page_tokens,
                   std::span<const std::unique_ptr<PageAllocator>> allocators)
    : spec_(std::move(spec)), placement_(std::move(placement)), page_tokens_(page_tokens) {
  RF_CHECK(!spec_.prompt.empty() && spec_.max_new_tokens >= 0);
  RF_CHECK(placement_->ranks() == static_cast<int>(allocators.size()));
  missing_.Add({0, prompt_tokens()});
  if (!spec_.pages.empty() && !spec_.score) {
    RF_CHECK(spec_.pages.size() == allocators.size());
    TakeValid();
  }
  spec_.pages.clear();
  for (size_t r = pages_.size(); r < allocators.size(); ++r) {
    pages_.emplace_back(allocators[r].get());
  }
}

void Sequence::TakeValid() {
  pages_ = std::move(spec_.pages);
  for (const Span& span : spec_.valid) {
    RF_CHECK(span.begin >= 0 && span.size() > 0 && span.end <= prompt_tokens());
    ForEachRun(*placement_, page_tokens_, span, [this](int rank, int64_t page, Span run) {
      if (pages_[static_cast<size_t>(rank)].has(page)) missing_.Remove(run);
    });
  }
  // The first token comes from the last position's logits.
  if (spec_.max_new_tokens > 0) missing_.Add({prompt_tokens() - 1, prompt_tokens()});
  const SpanSet written = missing_;
  for (const Span& span : written.spans()) {
    ForEachRun(*placement_, page_tokens_, span,
               [this](int rank, int64_t page, Span) { DropSharedPage(rank, page); });
  }
  for (int r = 0; r < placement_->ranks(); ++r) {
    PageList& list = pages_[static_cast<size_t>(r)];
    const int64_t local = placement_->TokensBefore(r, prompt_tokens());
    // Generated tokens may go on in the page that the prompt ends in.
    if (local % page_tokens_ != 0) DropSharedPage(r, local / page_tokens_);
    const int64_t needed = PagesFor(r, prompt_tokens());
    for (int64_t page = needed; page < list.size(); ++page) {
      if (list.has(page)) list.Drop(page);
    }
  }
}

void Sequence::DropSharedPage(int rank, int64_t index) {
  PageList& list = pages_[static_cast<size_t>(rank)];
  if (!list.has(index) || !list.shared(index)) return;
  list.Drop(index);
  for (int64_t i = index * page_tokens_; i < (index + 1) * page_tokens_; ++i) {
    const int64_t position = placement_->PositionAt(rank, i);
    if (position < prompt_tokens()) missing_.Add({position, position + 1});
  }
}

TokenId Sequence::Token(int64_t position) const {
  RF_DCHECK(position >= 0 && position < known_tokens());
  const auto p = static_cast<size_t>(position);
  return p < spec_.prompt.size() ? spec_.prompt[p] : generated_[p - spec_.prompt.size()];
}

void Sequence::Append(TokenId token) {
  RF_CHECK(missing_.empty());
  generated_.push_back(token);
  missing_.Add({known_tokens() - 1, known_tokens()});
}

SpanSet Sequence::Holes() const {
  return generated_.empty() ? missing_ : missing_.Within({0, known_tokens() - 1});
}

bool Sequence::HasHoles() const {
  const int64_t end = generated_.empty() ? known_tokens() : known_tokens() - 1;
  return !missing_.empty() && missing_.front() < end;
}

bool Sequence::decodes() const { return !generated_.empty() && !missing_.empty() && !HasHoles(); }

SpanSet Sequence::Valid() const {
  SpanSet valid({0, known_tokens()});
  for (const Span& span : missing_.spans()) valid.Remove(span);
  return valid;
}

int64_t Sequence::MarkComputed(std::span<const Span> spans, bool scored) {
  int64_t again = 0;
  for (const Span& span : spans) {
    again += repair_.Within(span).size();
    repair_.Remove(span);
    missing_.Remove(span);
    if (scored) scored_until_ = std::max(scored_until_, span.end);
  }
  return again;
}

void Sequence::MarkTorn(std::span<const Span> spans) {
  for (const Span& span : spans) {
    RF_CHECK(missing_.Within(span).size() == span.size());
    repair_.Add(span);
  }
}

int64_t Sequence::PagesFor(int rank, int64_t tokens) const {
  return placement_->PagesBefore(rank, tokens, page_tokens_);
}

absl::Status Sequence::ExtendTo(int64_t tokens) {
  for (int r = 0; r < placement_->ranks(); ++r) {
    if (!pages_[static_cast<size_t>(r)].CanFillTo(PagesFor(r, tokens))) {
      return absl::ResourceExhaustedError(absl::StrCat("rank ", r, " has too few free KV pages"));
    }
  }
  for (int r = 0; r < placement_->ranks(); ++r) {
    RF_RETURN_IF_ERROR(pages_[static_cast<size_t>(r)].FillTo(PagesFor(r, tokens)));
  }
  reserved_ = std::max(reserved_, tokens);
  return absl::OkStatus();
}

BlockTable Sequence::Table(int64_t tokens) const {
  RF_CHECK(tokens <= reserved_);
  BlockTable table;
  for (int r = 0; r < placement_->ranks(); ++r) {
    const auto pages = pages_[static_cast<size_t>(r)].pages();
    const auto count = static_cast<size_t>(PagesFor(r, tokens));
    RF_CHECK(count <= pages.size());
    table.emplace_back(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count));
  }
  return table;
}

void Sequence::DropPages() {
  for (PageList& list : pages_) list.Clear();
  missing_ = SpanSet({0, known_tokens()});
  reserved_ = 0;
}

void Sequence::LosePages() {
  const SpanSet valid = Valid();
  for (const Span& span : valid.spans()) repair_.Add(span);
  DropPages();
}

bool Sequence::PagesAligned(const Placement& placement) const {
  return placement.stripe_tokens() % page_tokens_ == 0;
}

SpanSet Sequence::MoveTo(std::shared_ptr<const Placement> placement, std::span<const int> from,
                         std::span<const std::unique_ptr<PageAllocator>> allocators) {
  const int64_t tokens = std::max(reserved_, prompt_tokens());
  std::vector<std::vector<PageId>> kept(from.size());
  for (size_t r = 0; r < from.size(); ++r) {
    const int64_t pages = placement->PagesBefore(static_cast<int>(r), tokens, page_tokens_);
    kept[r].assign(static_cast<size_t>(pages), kNoPage);
  }
  SpanSet gone;
  if (!PagesAligned(*placement_) || !PagesAligned(*placement)) gone.Add({0, tokens});
  for (int64_t p = 0; gone.empty() && p < tokens; p += page_tokens_) {
    const int was = placement_->Home(p);
    const int64_t page = placement_->LocalToken(p) / page_tokens_;
    const int is = placement->Home(p);
    const PageList& list = pages_[static_cast<size_t>(was)];
    if (from[static_cast<size_t>(is)] != was || !list.has(page)) continue;
    kept[static_cast<size_t>(is)][static_cast<size_t>(placement->LocalToken(p) / page_tokens_)] =
        list.pages()[static_cast<size_t>(page)];
  }
  const SpanSet before = Valid();
  placement_ = std::move(placement);
  std::vector<PageList> lists;
  for (size_t r = 0; r < from.size(); ++r) {
    lists.push_back(PageList::Share(allocators[r].get(), kept[r]));
  }
  pages_ = std::move(lists);

  SpanSet lost;
  for (const Span& span : before.spans()) {
    ForEachRun(*placement_, page_tokens_, span, [&](int rank, int64_t page, Span run) {
      if (!pages_[static_cast<size_t>(rank)].has(page)) lost.Add(run);
    });
  }
  for (const Span& span : lost.spans()) {
    missing_.Add(span);
    repair_.Add(span);
  }
  return lost;
}

}  // namespace ringfill
