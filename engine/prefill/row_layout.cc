#include "engine/prefill/row_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringfill {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// Fills a batch row by row.
class BatchBuilder {
 public:
  BatchBuilder(RowBatch& batch, int64_t cap) : batch_(batch), cap_(cap) {}

  // `rows` rows that must lie in one tile come next.
  void Begin(int64_t row, int64_t rows) {
    if (!batch_.tiles.empty() && batch_.tiles.back().rows + rows <= cap_) return;
    batch_.tiles.push_back({row, 0, batch_.stores.size(), batch_.stores.size(), batch_.sends.size(),
                            batch_.sends.size(), 0, false});
  }
  void AddRow(int chunk, bool wanted) {
    RowTile& tile = batch_.tiles.back();
    ++tile.rows;
    tile.chunks |= uint64_t{1} << chunk;
    tile.wanted |= wanted;
  }
  void AddStore(int64_t row, PageId page, int token) {
    RowTile& tile = batch_.tiles.back();
    if (tile.last_store > tile.first_store) {
      KvStore& last = batch_.stores.back();
      if (last.row + last.rows == row && last.page == page &&
          last.token_in_page + last.rows == token) {
        ++last.rows;
        return;
      }
    }
    batch_.stores.push_back({row, 1, page, token});
    tile.last_store = batch_.stores.size();
  }
  void AddSend(int64_t row, int64_t slot) {
    RowTile& tile = batch_.tiles.back();
    if (tile.last_send > tile.first_send) {
      KvSend& last = batch_.sends.back();
      if (last.row + last.rows == row && last.slot + last.rows == slot) {
        ++last.rows;
        return;
      }
    }
    batch_.sends.push_back({row, 1, slot});
    tile.last_send = batch_.sends.size();
  }

 private:
  RowBatch& batch_;
  const int64_t cap_;
};

}  // namespace

StepLayout::StepLayout(const StepPlan& plan, std::vector<const Placement*> placements,
                       const RowLayoutOptions& options)
    : plan_(plan), placements_(std::move(placements)), options_(options) {
  int dealt_before = 0;
  for (int c = 0; c < static_cast<int>(plan_.chunks.size()); ++c) {
    turn_.push_back(dealt_before);
    if (dealt(c)) ++dealt_before;
    if (plan_.chunks[Index(c)].mode != TokenMode::kReplicated) sharded_.push_back(c);
  }
  rows_.resize(Index(plan_.ranks));
  for (int r = 0; r < plan_.ranks; ++r) ListRows(r);
}

const Placement& StepLayout::placement(int chunk) const {
  return *placements_[Index(plan_.chunks[Index(chunk)].placement)];
}

bool StepLayout::dealt(int chunk) const {
  return plan_.chunks[Index(chunk)].mode == TokenMode::kDealt;
}

bool StepLayout::Wanted(int chunk, int64_t position) const {
  const PrefillChunk& c = plan_.chunks[Index(chunk)];
  return c.score || (c.wants_logits && position == c.end() - 1);
}

// Calls fn(index, position, count) for each run of tokens of the chunk that `rank` computes, with
// consecutive positions, ascending.
template <typename Fn>
void StepLayout::ForEachPiece(int chunk, int rank, Fn fn) const {
  const PrefillChunk& c = plan_.chunks[Index(chunk)];
  const Placement& placement = this->placement(chunk);
  int64_t index = 0;
  if (!dealt(chunk)) {
    const int64_t stripe_tokens = placement.stripe_tokens();
    for (const Span& span : c.spans) {
      for (int64_t begin = span.begin; begin < span.end;) {
        const int64_t stripe = begin / stripe_tokens;
        const int64_t end = std::min(span.end, (stripe + 1) * stripe_tokens);
        if (placement.RankOfStripe(stripe) == rank) fn(index, begin, end - begin);
        index += end - begin;
        begin = end;
      }
    }
    return;
  }
  const int n = plan_.ranks;
  const auto tokens = static_cast<int64_t>(c.tokens.size());
  const int first = (rank + n - turn_[Index(chunk)] % n) % n;
  for (const Span& span : c.spans) {
    for (const int piece : {first, 2 * n - 1 - first}) {
      const int64_t begin = std::max(index, tokens * piece / (2 * n));
      const int64_t end = std::min(index + span.size(), tokens * (piece + 1) / (2 * n));
      if (begin < end) fn(begin, span.begin + begin - index, end - begin);
    }
    index += span.size();
  }
}

void StepLayout::ListRows(int rank) {
  RankRows& out = rows_[Index(rank)];
  for (const int chunk : sharded_) {
    ForEachPiece(chunk, rank, [&](int64_t index, int64_t position, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        out.position.push_back(position + i);
        out.index.push_back(index + i);
        out.chunk.push_back(chunk);
      }
    });
  }
}

int StepLayout::RankOfLast(int chunk) const {
  const PrefillChunk& c = plan_.chunks[Index(chunk)];
  if (!dealt(chunk)) return placement(chunk).Home(c.end() - 1);
  // The last piece always holds the last token; it is the pair of piece 0.
  return turn_[Index(chunk)] % plan_.ranks;
}

int64_t StepLayout::PagesOn(int chunk, int rank) const {
  return placement(chunk).PagesBefore(rank, plan_.chunks[Index(chunk)].end(), options_.page_tokens);
}

std::vector<KvSection> StepLayout::SectionsOf(int source) const {
  std::vector<KvSection> out(Index(plan_.ranks));
  const RankRows& rows = this->rows(source);
  for (size_t r = 0; r < rows.position.size(); ++r) {
    if (dealt(rows.chunk[r])) ++out[Index(placement(rows.chunk[r]).Home(rows.position[r]))].rows;
  }
  int64_t slot = 0;
  for (KvSection& section : out) {
    if (section.rows == 0) continue;
    section.slot = slot + options_.head_slots;
    slot = section.slot + section.rows;
  }
  return out;
}

std::vector<KvStore> StepLayout::StoresFrom(int source, int home) const {
  std::vector<KvStore> out;
  const RankRows& rows = this->rows(source);
  int64_t row = 0;
  for (size_t r = 0; r < rows.position.size(); ++r) {
    const int chunk = rows.chunk[r];
    if (!dealt(chunk) || placement(chunk).Home(rows.position[r]) != home) continue;
    const int64_t local = placement(chunk).LocalToken(rows.position[r]);
    const PageId page =
        plan_.chunks[Index(chunk)].pages[Index(home)][Index(local / options_.page_tokens)];
    const int token = static_cast<int>(local % options_.page_tokens);
    if (!out.empty() && out.back().page == page &&
        out.back().token_in_page + out.back().rows == token) {
      ++out.back().rows;
    } else {
      out.push_back({row, 1, page, token});
    }
    ++row;
  }
  return out;
}

RowBatch StepLayout::MakeBatch(int rank) const {
  const RankRows& rows = this->rows(rank);
  RowBatch batch;
  batch.position = rows.position;
  batch.chunk = rows.chunk;
  const std::vector<KvSection> sections = SectionsOf(rank);
  std::vector<int64_t> next_slot;
  for (const KvSection& section : sections) {
    next_slot.push_back(section.slot);
    if (section.rows > 0) batch.send_slots = section.slot + section.rows;
  }
  const int page_tokens = options_.page_tokens;
  BatchBuilder builder(batch, std::max(options_.tile_rows, page_tokens));
  // A row's page at home; rows of one page stay together.
  auto local_of = [&](int64_t r) {
    return placement(rows.chunk[Index(r)]).LocalToken(rows.position[Index(r)]);
  };
  for (int64_t row = 0; row < rows.rows();) {
    const int chunk = rows.chunk[Index(row)];
    const PrefillChunk& c = plan_.chunks[Index(chunk)];
    int64_t end = row + 1;
    const bool is_dealt = dealt(chunk);
    if (!is_dealt) {
      const int64_t page = local_of(row) / page_tokens;
      while (end < rows.rows() && rows.chunk[Index(end)] == chunk &&
             local_of(end) / page_tokens == page) {
        ++end;
      }
    }
    builder.Begin(row, end - row);
    for (; row < end; ++row) {
      const int64_t position = rows.position[Index(row)];
      batch.token.push_back(c.tokens[Index(rows.index[Index(row)])]);
      builder.AddRow(chunk, Wanted(chunk, position));
      if (is_dealt) {
        builder.AddSend(row, next_slot[Index(placement(chunk).Home(position))]++);
      } else {
        const int64_t local = local_of(row);
        builder.AddStore(row, c.pages[Index(rank)][Index(local / page_tokens)],
                         static_cast<int>(local % page_tokens));
      }
    }
  }
  return batch;
}

std::vector<QueryTile> StepLayout::QueryTiles(const std::vector<int>& chunks, int rank) const {
  std::vector<int> run_of(plan_.chunks.size(), -1);
  for (size_t i = 0; i < chunks.size(); ++i) run_of[Index(chunks[i])] = static_cast<int>(i);
  std::vector<QueryTile> out;
  const RankRows& rows = this->rows(rank);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const int chunk = rows.chunk[Index(row)];
    const int run = run_of[Index(chunk)];
    if (run < 0) continue;
    if (out.empty() || out.back().chunk != chunk || out.back().tokens == options_.query_tokens) {
      out.push_back({chunk, row, 0, run, false});
    }
    ++out.back().tokens;
    out.back().wanted |= Wanted(chunk, rows.position[Index(row)]);
  }
  return out;
}

AttendBatch StepLayout::MakeAttend(const std::vector<int>& chunks, int query_rank, int kv_rank,
                                   std::vector<KvRun> runs) const {
  RF_CHECK(runs.size() == chunks.size());
  AttendBatch batch;
  batch.tiles = QueryTiles(chunks, query_rank);
  batch.runs = std::move(runs);
  const RankRows& rows = this->rows(query_rank);
  batch.visible.resize(rows.position.size());
  for (const QueryTile& tile : batch.tiles) {
    const Placement& placement = this->placement(tile.chunk);
    for (int64_t row = tile.row; row < tile.row + tile.tokens; ++row) {
      batch.visible[Index(row)] = placement.TokensBefore(kv_rank, rows.position[Index(row)] + 1);
    }
  }
  return batch;
}

}  // namespace ringfill
