#include "engine/compute/cuda/kernels/attention_work.h"

#include <algorithm>

namespace ringfill::gpu {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls item(row, rows) for a span's rows, at most `most` at a time.
template <typename Item>
void ForEachItem(const TokenSpan& span, int group, int most, const Item& item) {
  const int64_t end = (span.token + span.tokens) * group;
  for (int64_t row = span.token * group; row < end; row += most) {
    item(row, static_cast<int32_t>(std::min<int64_t>(most, end - row)));
  }
}

}  // namespace

std::vector<PrefillWork> PlanPrefill(const std::vector<TokenSpan>& spans, int group) {
  std::vector<const TokenSpan*> order;
  for (const TokenSpan& span : spans) order.push_back(&span);
  std::stable_sort(order.begin(), order.end(),
                   [](const TokenSpan* a, const TokenSpan* b) { return a->keys() > b->keys(); });
  std::vector<PrefillWork> out;
  for (const TokenSpan* span : order) {
    const auto first = static_cast<std::ptrdiff_t>(out.size());
    ForEachItem(*span, group, kPrefillRows, [&](int64_t row, int32_t rows) {
      out.push_back({.row = row, .rows = rows, .run = span->run, .bit = span->bit});
    });
    // Within a span later rows see more.
    std::reverse(out.begin() + first, out.end());
  }
  return out;
}

DecodePlan PlanDecode(const std::vector<TokenSpan>& spans, const DecodePlanOptions& options) {
  int64_t items = 0;
  for (const TokenSpan& span : spans) items += CeilDiv(span.tokens * options.group, kDecodeRows);
  const int64_t wanted = CeilDiv(options.blocks, std::max<int64_t>(1, items * options.kv_heads));
  DecodePlan plan;
  for (const TokenSpan& span : spans) {
    const int64_t splits = std::clamp<int64_t>(span.keys() / kMinSplitKeys, 1, wanted);
    const int64_t first_key = span.begin / kPrefillKeys * kPrefillKeys;
    const int64_t each =
        CeilDiv(CeilDiv(span.visible - first_key, splits), kPrefillKeys) * kPrefillKeys;
    ForEachItem(span, options.group, kDecodeRows, [&](int64_t row, int32_t rows) {
      if (splits == 1) {
        plan.work.push_back({.row = row,
                             .rows = rows,
                             .run = span.run,
                             .first_key = first_key,
                             .end_key = span.visible,
                             .part = -1});
        return;
      }
      const auto first = static_cast<int32_t>(plan.parts);
      for (int64_t key = first_key; key < span.visible; key += each) {
        plan.work.push_back({.row = row,
                             .rows = rows,
                             .run = span.run,
                             .first_key = key,
                             .end_key = std::min(key + each, span.visible),
                             .part = static_cast<int32_t>(plan.parts++)});
      }
      plan.merge.push_back({.row = row,
                            .rows = rows,
                            .first_part = first,
                            .parts = static_cast<int32_t>(plan.parts) - first});
    });
  }
  return plan;
}

}  // namespace ringfill::gpu
