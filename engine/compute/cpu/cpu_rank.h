// What the operations of one CPU device work on: its pages, its threads and their scratch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/compute/cpu/cpu_model.h"
#include "engine/compute/cpu/thread_team.h"
#include "engine/compute/memory_ledger.h"
#include "engine/compute/seen_counters.h"
#include "kvcache/page_pool.h"

namespace ringfill {

// Scratch of one compute thread.
struct CpuThread {
  CpuThread(const CpuModel& model, const std::shared_ptr<MemoryLedger>& ledger);

  MatrixProducts products;
  TileScratch tile;
  LedgerBuffer attention;
  LedgerBuffer head_weights;  // a block of the output head, packed
  LedgerBuffer head_logits;
};

// Operations run one at a time; inside one, the team's threads share its loops. Pages, counters and
// the ledger may be looked at by the host between them.
struct CpuRank {
  CpuRank(CpuModel& model, int64_t pages, int threads, int spin_rounds);
  ~CpuRank();

  CpuModel& model;
  const std::shared_ptr<MemoryLedger> ledger;
  PagePool pool;
  ThreadTeam team;
  std::vector<std::unique_ptr<CpuThread>> threads;  // [team.size()]
  std::atomic<int64_t> product_rows{0};
  SeenCounters seen;

  CpuThread& thread(int t) const { return *threads[static_cast<size_t>(t)]; }
  // Every thread's scratch for attention tiles of up to `rows` rows.
  void ReserveAttention(int rows);
  // Enters what the threads' products have taken.
  void CountProductScratch();
};

}  // namespace ringfill
