#include "engine/compute/cuda/token_lists.h"

#include <algorithm>
#include <bit>

#include "engine/compute/cuda/run_lists.h"

namespace ringfill {
namespace {

size_t PowerOfTwo(size_t n) { return n == 0 ? 0 : std::bit_ceil(n); }

template <typename T>
void PadToPowerOfTwo(std::vector<T>& list) {
  list.resize(PowerOfTwo(list.size()));
}

// Consecutive rows of one run that see keys from the same one on, and whose visible lengths do not
// fall. `run`: of each row.
std::vector<gpu::TokenSpan> SpansOf(const TokenLists& lists, const std::vector<int32_t>& run) {
  std::vector<gpu::TokenSpan> spans;
  for (size_t i = 0; i < run.size(); ++i) {
    const bool joins = !spans.empty() && run[i] == run[i - 1] &&
                       lists.begin[i] == lists.begin[i - 1] &&
                       lists.visible[i] >= lists.visible[i - 1];
    if (!joins) {
      spans.push_back({.token = static_cast<int64_t>(i),
                       .tokens = 0,
                       .run = run[i],
                       .bit = 0,
                       .visible = 0,
                       .begin = lists.begin[i]});
    }
    ++spans.back().tokens;
    spans.back().visible = lists.visible[i];
  }
  return spans;
}

}  // namespace

int64_t PaddedTokens(int64_t tokens) {
  if (tokens > kGraphTokens) return tokens;
  return static_cast<int64_t>(PowerOfTwo(static_cast<size_t>(tokens)));
}

TokenLists::TokenLists(const Device::TokenBatch& batch, const gpu::DecodePlanOptions& options)
    : token(batch.token.begin(), batch.token.end()),
      position(batch.position),
      begin(batch.begin),
      visible(batch.visible) {
  const auto rows = static_cast<size_t>(PaddedTokens(batch.tokens()));
  token.resize(rows);
  position.resize(rows);
  begin.resize(rows);
  visible.resize(rows);
  targets.resize(rows);
  for (const KvStore& store : batch.stores) {
    for (int i = 0; i < store.rows; ++i) {
      gpu::KvTarget& target = targets[static_cast<size_t>(store.row + i)];
      target.page = store.page;
      target.token_in_page = store.token_in_page + i;
    }
  }
  RunLists lists(batch.runs, false);
  runs = std::move(lists.views);
  pages = std::move(lists.pages);
  // Rows that are there for their number alone look at a run without keys.
  std::vector<int32_t> run(batch.run.begin(), batch.run.end());
  run.resize(rows, static_cast<int32_t>(runs.size()));
  runs.resize(std::max(runs.size(), rows) + 1);
  gpu::DecodePlan plan = gpu::PlanDecode(SpansOf(*this, run), options);
  work = std::move(plan.work);
  merge = std::move(plan.merge);
  parts = plan.parts;
  if (batch.tokens() > kGraphTokens) return;
  PadToPowerOfTwo(pages);
  PadToPowerOfTwo(work);
  PadToPowerOfTwo(merge);
  parts = static_cast<int64_t>(PowerOfTwo(static_cast<size_t>(parts)));
}

}  // namespace ringfill
