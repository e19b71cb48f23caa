#include "engine/prefill/row_layout.h"

#include <algorithm>

namespace ringfill {
namespace {

// Appends the rows of positions [begin, end), which lie in one stripe and so are contiguous both in
// position and in the rank's local tokens.
void AddStripeRows(int chunk, int64_t begin, int64_t end, const Placement& placement,
                   const RowLayoutOptions& options, RowLayout& out) {
  const int64_t first_row = out.rows();
  for (int64_t p = begin; p < end; ++p) {
    out.position.push_back(p);
    out.chunk.push_back(chunk);
  }
  int64_t local = placement.LocalToken(begin);
  for (int64_t done = 0; done < end - begin;) {
    const int token = static_cast<int>(local % options.page_tokens);
    const int rows =
        static_cast<int>(std::min<int64_t>(options.page_tokens - token, end - begin - done));
    out.segments.push_back({chunk, first_row + done, rows, local / options.page_tokens, token});
    done += rows;
    local += rows;
  }
  for (int64_t done = 0; done < end - begin; done += options.query_tokens) {
    const int tokens =
        static_cast<int>(std::min<int64_t>(options.query_tokens, end - begin - done));
    out.queries.push_back({chunk, first_row + done, tokens});
  }
}

void MakeTiles(int64_t cap, RowLayout& out) {
  for (size_t s = 0; s < out.segments.size(); ++s) {
    const PageSegment& segment = out.segments[s];
    if (out.tiles.empty() || out.tiles.back().rows + segment.rows > cap) {
      out.tiles.push_back({segment.row, 0, s, s});
    }
    out.tiles.back().rows += segment.rows;
    out.tiles.back().last_segment = s + 1;
  }
}

}  // namespace

RowLayout LayOutRows(const StepPlan& plan, const Placement& placement, int rank,
                     const RowLayoutOptions& options) {
  RowLayout out;
  const int64_t stripe_tokens = placement.stripe_tokens();
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const PrefillChunk& chunk = plan.chunks[c];
    for (int64_t begin = chunk.begin; begin < chunk.end;) {
      const int64_t stripe = begin / stripe_tokens;
      const int64_t end = std::min(chunk.end, (stripe + 1) * stripe_tokens);
      if (placement.RankOfStripe(stripe) == rank) {
        AddStripeRows(static_cast<int>(c), begin, end, placement, options, out);
      }
      begin = end;
    }
  }
  MakeTiles(std::max(options.tile_rows, options.page_tokens), out);
  out.visible.resize(static_cast<size_t>(placement.ranks()));
  for (int r = 0; r < placement.ranks(); ++r) {
    auto& visible = out.visible[static_cast<size_t>(r)];
    visible.reserve(out.position.size());
    for (int64_t p : out.position) visible.push_back(placement.TokensBefore(r, p + 1));
  }
  return out;
}

}  // namespace ringfill
