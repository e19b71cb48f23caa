// Which rows of a step's sharded chunks each rank computes, where their K/V go, and what they see
// of each rank's KV. Pure: every rank works out the same from the plan.
//
//   kHome    a row is computed by the rank that keeps its KV
//   kDealt   the chunk's new tokens, in order, are cut into 2N pieces of equal length; a rank gets
//            piece i and piece 2N-1-i, so that products and causal attention balance to a token.
//            i is the rank for the step's first dealt chunk, one less for each further one, so that
//            the odd tokens of many short chunks do not all fall to one rank.
//
// Source of the pairing: zigzag context parallelism, applied to new tokens alone.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/batch.h"
#include "engine/layout/placement.h"
#include "engine/schedule/documents.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

struct RowLayoutOptions {
  int page_tokens = 64;
  int tile_rows = 64;      // of a product tile; page_tokens where that is more
  int query_tokens = 64;   // of a query tile, at most
  int64_t head_slots = 0;  // slots of the outbox that stay free before each section
};

// The rows that one rank computes, by chunk, then position.
struct RankRows {
  std::vector<int64_t> position;  // [rows]
  std::vector<int> chunk;         // [rows]
  std::vector<int64_t> index;     // [rows] in the chunk's tokens

  int64_t rows() const { return static_cast<int64_t>(position.size()); }
};

// The dealt rows of one rank that have the same home: slots [slot, slot + rows) of its outbox.
struct KvSection {
  int64_t slot = 0;
  int64_t rows = 0;
};

// Immutable. `plan` and the placements must outlive it.
class StepLayout {
 public:
  // placements: [plan.placements]
  StepLayout(const StepPlan& plan, std::vector<const Placement*> placements,
             const RowLayoutOptions& options);

  int ranks() const { return plan_.ranks; }
  int page_tokens() const { return options_.page_tokens; }
  const Placement& placement(int chunk) const;
  // Indices of the chunks that are not replicated.
  const std::vector<int>& sharded() const { return sharded_; }
  bool dealt(int chunk) const;
  // Does somebody ask for the final state of the token?
  bool Wanted(int chunk, int64_t position) const;

  const RankRows& rows(int rank) const { return rows_[static_cast<size_t>(rank)]; }
  // Where the document begins that holds the token.
  int64_t StartOf(int chunk, int64_t position) const {
    return DocumentStart(plan_.chunks[static_cast<size_t>(chunk)].document_starts, position);
  }
  // The rank that computes the chunk's last position.
  int RankOfLast(int chunk) const;
  // Pages on `rank` that hold KV which the chunk's tokens see.
  PageRange PagesOn(int chunk, int rank) const;

  RowBatch MakeBatch(int rank) const;
  // [ranks] by destination, the rank itself included.
  std::vector<KvSection> SectionsOf(int source) const;
  // Where `home` keeps the rows of source's section for it; KvStore::row counts from the section's
  // first row.
  std::vector<KvStore> StoresFrom(int source, int home) const;

  // Tiles of the rows of `rank` in `chunks`, one document each; QueryTile::run is the index in
  // `chunks`, begin is not set.
  std::vector<QueryTile> QueryTiles(const std::vector<int>& chunks, int rank) const;
  // Those, and what their rows see on rank `kv_rank`. runs: one for each of `chunks`, its PagesOn.
  AttendBatch MakeAttend(const std::vector<int>& chunks, int query_rank, int kv_rank,
                         std::vector<KvRun> runs) const;

 private:
  template <typename Fn>
  void ForEachPiece(int chunk, int rank, Fn fn) const;
  void ListRows(int rank);

  const StepPlan& plan_;
  const std::vector<const Placement*> placements_;
  const RowLayoutOptions options_;
  std::vector<int> sharded_;
  std::vector<int> turn_;       // [chunks] how many chunks before it are dealt
  std::vector<RankRows> rows_;  // [ranks]
};

}  // namespace ringfill
