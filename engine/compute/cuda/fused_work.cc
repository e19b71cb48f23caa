#include "engine/compute/cuda/fused_work.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace ringfill {
namespace {

using gpu::FusedEntry;
using gpu::TokenSpan;

// Spans in the order of their tokens; those that follow each other in one run are one.
std::vector<TokenSpan> Joined(std::vector<TokenSpan> spans, const std::vector<int64_t>& visible) {
  std::sort(spans.begin(), spans.end(),
            [](const TokenSpan& a, const TokenSpan& b) { return a.token < b.token; });
  std::vector<TokenSpan> out;
  for (const TokenSpan& span : spans) {
    TokenSpan* const last = out.empty() ? nullptr : &out.back();
    const bool joins = last != nullptr && last->token + last->tokens == span.token &&
                       last->run == span.run && last->bit == span.bit &&
                       last->begin == span.begin &&
                       last->visible <= visible[static_cast<size_t>(span.token)];
    if (joins) {
      last->tokens += span.tokens;
      last->visible = span.visible;
    } else {
      out.push_back(span);
    }
  }
  return out;
}

class Splitter {
 public:
  Splitter(const std::vector<int64_t>& visible, const FusedLimits& limits)
      : visible_(visible),
        limits_(limits),
        most_tokens_(std::max(1, gpu::kFusedRows / limits.group)) {}

  // Cuts a span where an entry is full or its tokens see too different numbers of keys.
  void Split(const TokenSpan& span) {
    const int64_t end = span.token + span.tokens;
    for (int64_t token = span.token; token < end;) {
      int64_t stop = token + 1;
      while (stop < end && stop - token < most_tokens_ &&
             VisibleTo(stop) - VisibleTo(token) <= kMostStep) {
        ++stop;
      }
      TokenSpan piece = span;
      piece.token = token;
      piece.tokens = stop - token;
      piece.visible = VisibleTo(stop - 1);
      Place(piece);
      token = stop;
    }
  }

  AttentionSplit Finish() {
    std::stable_sort(out_.entries.begin(), out_.entries.end(),
                     [](const FusedEntry& a, const FusedEntry& b) { return a.pages > b.pages; });
    return std::move(out_);
  }

  void ToKernels(const TokenSpan& span) { out_.rest.push_back(span); }

 private:
  int64_t VisibleTo(int64_t token) const { return visible_[static_cast<size_t>(token)]; }

  void Place(const TokenSpan& piece) {
    const int64_t page = limits_.page_tokens;
    const int64_t first = (piece.begin + page - 1) / page;
    const int64_t last = VisibleTo(piece.token) / page;
    const int64_t pages = std::min(last - first, limits_.table_pages);
    if (pages <= 0 || pages * page < limits_.least_keys) return ToKernels(piece);
    out_.entries.push_back({.token = piece.token,
                            .tokens = static_cast<int32_t>(piece.tokens),
                            .run = piece.run,
                            .first_page = first,
                            .pages = static_cast<int32_t>(pages),
                            .bit = piece.bit});
    if (first * page > piece.begin) {
      TokenSpan before = piece;
      before.visible = first * page;
      out_.before.push_back(before);
    }
    TokenSpan rest = piece;
    rest.begin = (first + pages) * page;
    if (rest.keys() > 0) out_.rest.push_back(rest);
  }

  const std::vector<int64_t>& visible_;
  const FusedLimits limits_;
  const int64_t most_tokens_;
  AttentionSplit out_;
};

}  // namespace

AttentionSplit SplitAttention(const std::vector<TokenSpan>& spans,
                              const std::vector<int64_t>& visible,
                              const std::vector<bool>& takes_run, const FusedLimits& limits) {
  Splitter splitter(visible, limits);
  std::vector<TokenSpan> split;
  for (const TokenSpan& span : spans) {
    const bool takes = limits.group <= gpu::kFusedRows && takes_run[static_cast<size_t>(span.run)];
    if (takes) {
      split.push_back(span);
    } else {
      splitter.ToKernels(span);
    }
  }
  for (const TokenSpan& span : Joined(std::move(split), visible)) splitter.Split(span);
  return splitter.Finish();
}

int FusedEntriesOf(int kv_heads) {
  const auto fill = std::bit_floor(static_cast<unsigned>(std::max(1, 256 / kv_heads)));
  return std::clamp(static_cast<int>(fill), 4, 32);
}

void FillUpEntries(std::vector<FusedEntry>& entries, int of_a_call) {
  RF_DCHECK(!entries.empty());
  FusedEntry none = entries[0];
  none.tokens = 0;
  none.pages = 1;
  while (entries.size() % static_cast<size_t>(of_a_call) != 0) entries.push_back(none);
}

}  // namespace ringfill
