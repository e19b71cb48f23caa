#include "engine/cost/chunk_counts.h"

#include <algorithm>

#include "base/check.h"
#include "engine/schedule/documents.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {
namespace {

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Sum over x in [first, first + n) of RoundUp(x, unit); first >= 1.
double SumRoundedUp(int64_t first, int64_t n, int64_t unit) {
  double sum = 0;
  for (int64_t x = first; x < first + n;) {
    const int64_t rounded = RoundUp(x, unit);
    const int64_t count = std::min(rounded, first + n - 1) - x + 1;
    sum += static_cast<double>(rounded) * static_cast<double>(count);
    x += count;
  }
  return sum;
}

// Walks a rank's rows in order and counts.
class RowCounter {
 public:
  RowCounter(const PrefillChunk& chunk, const Placement& placement, TokenMode mode,
             const TileShape& tiles, RankCount& out)
      : chunk_(chunk),
        placement_(placement),
        dealt_(mode == TokenMode::kDealt),
        tiles_(tiles),
        out_(out) {
    const auto ranks = static_cast<size_t>(placement.ranks());
    out_.attend.resize(ranks);
    out_.wanted_attend.resize(ranks);
    out_.rows_home.resize(ranks);
  }

  // Rows of consecutive positions [begin, end) come next.
  void Add(int64_t begin, int64_t end) {
    const int64_t stripe_tokens = placement_.stripe_tokens();
    while (begin < end) {
      const int64_t stripe_end = std::min(end, (begin / stripe_tokens + 1) * stripe_tokens);
      AddPiece(begin, stripe_end);
      begin = stripe_end;
    }
  }

  void Finish() {
    if (tile_rows_ > 0) CloseQueryTile();
    if (product_rows_ > 0) CloseProductTile();
  }

 private:
  bool WantedIn(int64_t begin, int64_t end) const {
    return chunk_.score || (chunk_.wants_logits && begin < chunk_.end() && chunk_.end() <= end);
  }

  // [begin, end) lies in one stripe.
  void AddPiece(int64_t begin, int64_t end) {
    const int home = placement_.Home(begin);
    out_.rows += end - begin;
    if (dealt_) out_.rows_home[static_cast<size_t>(home)] += end - begin;
    AddProducts(begin, end);
    AddQueries(begin, end, home);
  }

  // Rows of one page stay together where they are stored, as in StepLayout::MakeBatch.
  void AddProducts(int64_t begin, int64_t end) {
    const int64_t local = placement_.LocalToken(begin);
    const int64_t cap = std::max(tiles_.product_rows, tiles_.page_tokens);
    for (int64_t done = 0; done < end - begin;) {
      int64_t rows =
          std::min(end - begin - done, tiles_.page_tokens - (local + done) % tiles_.page_tokens);
      if (dealt_) rows = std::min(end - begin - done, std::max<int64_t>(1, cap - product_rows_));
      if (product_rows_ > 0 && product_rows_ + rows > cap) CloseProductTile();
      product_rows_ += rows;
      product_wanted_ = product_wanted_ || WantedIn(begin + done, begin + done + rows);
      done += rows;
    }
  }

  void CloseProductTile() {
    const int64_t rounded = RoundUp(product_rows_, tiles_.row_granule);
    out_.rounded_rows += rounded;
    if (product_wanted_) out_.wanted_rounded_rows += rounded;
    product_rows_ = 0;
    product_wanted_ = false;
  }

  void AddQueries(int64_t begin, int64_t end, int home) {
    for (int64_t at = begin; at < end;) {
      if (at < document_.begin || at >= document_.end) {
        if (tile_rows_ > 0) CloseQueryTile();
        document_ = DocumentAt(chunk_.document_starts, at);
      }
      const int64_t rows =
          std::min(std::min(end, document_.end) - at, tiles_.query_tokens - tile_rows_);
      tile_parts_.push_back({at, rows, home});
      tile_rows_ += rows;
      tile_wanted_ = tile_wanted_ || WantedIn(at, at + rows);
      at += rows;
      if (tile_rows_ == tiles_.query_tokens) CloseQueryTile();
    }
  }

  void CloseQueryTile() {
    for (int s = 0; s < placement_.ranks(); ++s) {
      AttendCount count;
      const int64_t begin = document_.begin == 0 ? 0 : placement_.TokensBefore(s, document_.begin);
      const int64_t skipped = begin / tiles_.page_tokens * tiles_.page_tokens;
      int64_t last = 0;
      for (const Part& part : tile_parts_) {
        const int64_t first = placement_.TokensBefore(s, part.position + 1);
        last = first;
        if (s == part.home) {
          count.token_keys += SumRoundedUp(first, part.rows, tiles_.page_tokens) -
                              static_cast<double>(skipped * part.rows);
          last = first + part.rows - 1;
        } else {
          count.token_keys +=
              static_cast<double>(KeysInPages(begin, first, tiles_.page_tokens) * part.rows);
        }
      }
      count.tile_keys = static_cast<double>(KeysInPages(begin, last, tiles_.page_tokens));
      Add(count, out_.attend[static_cast<size_t>(s)]);
      if (tile_wanted_) Add(count, out_.wanted_attend[static_cast<size_t>(s)]);
    }
    tile_parts_.clear();
    tile_rows_ = 0;
    tile_wanted_ = false;
  }

  static void Add(const AttendCount& from, AttendCount& into) {
    into.token_keys += from.token_keys;
    into.tile_keys += from.tile_keys;
  }

  // Rows of a query tile in one stripe.
  struct Part {
    int64_t position;
    int64_t rows;
    int home;
  };

  const PrefillChunk& chunk_;
  const Placement& placement_;
  const bool dealt_;
  const TileShape& tiles_;
  RankCount& out_;
  int64_t product_rows_ = 0;
  bool product_wanted_ = false;
  Span document_;  // that the query tile's rows lie in
  std::vector<Part> tile_parts_;
  int64_t tile_rows_ = 0;
  bool tile_wanted_ = false;
};

void CountHome(const PrefillChunk& chunk, const Placement& placement,
               std::vector<RowCounter>& counters) {
  const int64_t stripe_tokens = placement.stripe_tokens();
  for (const Span& span : chunk.spans) {
    for (int64_t begin = span.begin; begin < span.end;) {
      const int64_t stripe = begin / stripe_tokens;
      const int64_t end = std::min(span.end, (stripe + 1) * stripe_tokens);
      counters[static_cast<size_t>(placement.RankOfStripe(stripe))].Add(begin, end);
      begin = end;
    }
  }
}

// 2N pieces of the new tokens; a rank has piece i and piece 2N-1-i, as in StepLayout.
void CountDealt(const PrefillChunk& chunk, int64_t tokens, std::vector<RowCounter>& counters) {
  const auto pieces = static_cast<int64_t>(2 * counters.size());
  int64_t index = 0;
  for (const Span& span : chunk.spans) {
    for (size_t r = 0; r < counters.size(); ++r) {
      for (const int64_t piece : {static_cast<int64_t>(r), pieces - 1 - static_cast<int64_t>(r)}) {
        const int64_t begin = std::max(index, tokens * piece / pieces);
        const int64_t end = std::min(index + span.size(), tokens * (piece + 1) / pieces);
        if (begin < end) counters[r].Add(span.begin + begin - index, span.begin + end - index);
      }
    }
    index += span.size();
  }
}

}  // namespace

ChunkCounts CountChunk(const PrefillChunk& chunk, const Placement& placement, TokenMode mode,
                       const TileShape& tiles) {
  RF_CHECK(mode != TokenMode::kReplicated);
  ChunkCounts counts;
  for (const Span& span : chunk.spans) counts.tokens += span.size();
  counts.any_wanted = chunk.wants_logits || chunk.score;
  counts.rank_of_last = mode == TokenMode::kDealt ? 0 : placement.Home(chunk.end() - 1);
  counts.ranks.resize(static_cast<size_t>(placement.ranks()));
  std::vector<RowCounter> counters;
  for (int r = 0; r < placement.ranks(); ++r) {
    RankCount& rank = counts.ranks[static_cast<size_t>(r)];
    rank.pages = PagesSeen(chunk, placement, r, tiles.page_tokens).count;
    counters.emplace_back(chunk, placement, mode, tiles, rank);
  }
  if (mode == TokenMode::kDealt) {
    CountDealt(chunk, counts.tokens, counters);
  } else {
    CountHome(chunk, placement, counters);
  }
  for (RowCounter& counter : counters) counter.Finish();
  return counts;
}

std::vector<AttendCount> CountReplicated(const PrefillChunk& chunk, const Placement& placement,
                                         int64_t page_tokens, int64_t tile_tokens) {
  std::vector<AttendCount> counts(static_cast<size_t>(placement.ranks()));
  int64_t in_tile = 0;
  for (const Span& span : chunk.spans) {
    Span document;
    for (int64_t p = span.begin; p < span.end; ++p) {
      if (p >= document.end) document = DocumentAt(chunk.document_starts, p);
      const bool ends_tile =
          ++in_tile == tile_tokens || p + 1 == chunk.end() || p + 1 == document.end;
      for (int r = 0; r < placement.ranks(); ++r) {
        const auto keys =
            static_cast<double>(KeysInPages(placement.TokensBefore(r, document.begin),
                                            placement.TokensBefore(r, p + 1), page_tokens));
        counts[static_cast<size_t>(r)].token_keys += keys;
        if (ends_tile) counts[static_cast<size_t>(r)].tile_keys += keys;
      }
      if (ends_tile) in_tile = 0;
    }
  }
  return counts;
}

}  // namespace ringfill
