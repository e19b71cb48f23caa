#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "engine/compute/cuda/cuda_rows.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/kernels/kv_pages.h"
#include "engine/compute/cuda/kernels/round_header.h"
#include "engine/compute/cuda/kernels/softmax.h"
#include "engine/compute/cuda/run_lists.h"

namespace ringfill {
namespace {

gpu::HeaderWords WordsOf(const RoundHeader& header) {
  static_assert(sizeof(gpu::HeaderWords) == sizeof(RoundHeader));
  static_assert(offsetof(RoundHeader, stop_mask) == 8 * gpu::HeaderWords::kStopMask);
  static_assert(offsetof(RoundHeader, checksum) == 8 * gpu::HeaderWords::kChecksum);
  gpu::HeaderWords words;
  std::memcpy(&words, &header, sizeof(words));
  return words;
}

RoundHeader HeaderOf(const gpu::HeaderWords& words) {
  RoundHeader header;
  std::memcpy(static_cast<void*>(&header), &words, sizeof(header));
  return header;
}

// The tiles of an Attend that run, and what they see.
struct ActiveTiles {
  std::vector<gpu::TokenSpan> spans;
  std::vector<int64_t> begin;  // [rows]; empty when all see keys from the first one on
  int64_t tokens = 0;
  int64_t pairs = 0;
};

ActiveTiles TilesOf(const Device::AttendArgs& args) {
  const AttendBatch& batch = *args.batch;
  ActiveTiles out;
  for (const QueryTile& tile : batch.tiles) {
    if (((args.stopped >> tile.chunk) & 1) != 0 || (args.only_wanted && !tile.wanted)) continue;
    RF_DCHECK(tile.tokens > 0 && tile.row + tile.tokens <= args.rows);
    const auto visible = batch.visible.begin() + static_cast<ptrdiff_t>(tile.row);
    for (int t = 0; t < tile.tokens; ++t) out.pairs += visible[t] - tile.begin;
    if (tile.begin > 0) {
      out.begin.resize(batch.visible.size());
      std::fill_n(out.begin.begin() + static_cast<ptrdiff_t>(tile.row), tile.tokens, tile.begin);
    }
    out.tokens += tile.tokens;
    out.spans.push_back({.token = tile.row,
                         .tokens = tile.tokens,
                         .run = tile.run,
                         .bit = tile.chunk,
                         .visible = visible[tile.tokens - 1],
                         .begin = tile.begin});
  }
  return out;
}

gpu::KvPages PagesOf(const CudaRank& rank, const Device::AttendArgs& args) {
  if (args.shard == nullptr) return rank.Pages(args.label.layer);
  return {const_cast<std::byte*>(args.shard), static_cast<int64_t>(rank.geometry.LayerBytes()),
          static_cast<int64_t>(rank.geometry.KOffset(0, 0)),
          static_cast<int64_t>(rank.geometry.VOffset(0, 0)), rank.geometry.page_tokens};
}

void NoteFault(LayerFlags& flags, uint64_t chunks, int round) {
  if (chunks == 0) return;
  flags.nonfinite_chunks.fetch_or(chunks);
  int none = -1;
  flags.nonfinite_round.compare_exchange_strong(none, std::max(0, round));
}

}  // namespace

absl::Status QueueAttend(CudaRank& rank, const Device::AttendArgs& args) {
  const ModelConfig& config = rank.config;
  ActiveTiles tiles = TilesOf(args);
  const gpu::SoftmaxArrays state = rank.States(args.state, args.rows);
  // When every row is worked on, the kernel empties states by not reading them.
  const bool clear_by_kernel = args.clear && tiles.tokens == args.rows;
  if (args.clear && !clear_by_kernel) {
    RF_RETURN_IF_ERROR(rank.Check(
        gpu::ClearStates(state, args.rows * config.heads, config.head_dim, rank.stream.get()),
        "ClearStates"));
  }
  if (!clear_by_kernel) {
    std::erase_if(tiles.spans, [](const gpu::TokenSpan& span) { return span.keys() == 0; });
  }
  if (tiles.spans.empty()) return absl::OkStatus();
  const std::vector<gpu::PrefillWork> work = gpu::PlanPrefill(tiles.spans, rank.group());
  const RunLists runs(args.batch->runs, args.shard != nullptr);
  Upload lists(rank.stream, rank.upload);
  const auto works_at = lists.Add(work);
  const auto runs_at = lists.Add(runs.views);
  const auto pages_at = lists.Add(runs.pages);
  const auto visible_at = lists.Add(args.batch->visible);
  const auto begin_at = lists.Add(tiles.begin);
  const auto mask_at = lists.AddZeros(sizeof(unsigned long long));
  RF_RETURN_IF_ERROR(lists.Send());
  RF_RETURN_IF_ERROR(rank.Check(
      gpu::AttendPrefill(
          {.attention = {.type = gpu::Element::kBF16,
                         .head_dim = config.head_dim,
                         .kv_heads = config.kv_heads,
                         .group = rank.group(),
                         .tokens = args.rows,
                         .q = args.q,
                         .state = state,
                         .clear = clear_by_kernel,
                         .kv = PagesOf(rank, args),
                         .page_table = lists.At<const uint32_t>(pages_at),
                         .runs = lists.At<const gpu::KvRunView>(runs_at),
                         .visible = lists.At<const int64_t>(visible_at),
                         .begin =
                             tiles.begin.empty() ? nullptr : lists.At<const int64_t>(begin_at)},
           .work = lists.At<const gpu::PrefillWork>(works_at),
           .works = static_cast<int>(work.size()),
           .nonfinite = lists.At<unsigned long long>(mask_at)},
          rank.stream.get()),
      "AttendPrefill"));
  const auto count = [&rank, pairs = tiles.pairs] {
    rank.attention_pairs.fetch_add(pairs, std::memory_order_relaxed);
    return absl::OkStatus();
  };
  if (args.flags == nullptr) {
    rank.stream.Then(count);
    return absl::OkStatus();
  }
  return rank.CopyOut(lists.At<const std::byte>(mask_at), sizeof(uint64_t),
                      [flags = args.flags, round = args.label.round, count](const std::byte* got) {
                        uint64_t chunks;
                        std::memcpy(&chunks, got, sizeof(chunks));
                        NoteFault(*flags, chunks, round);
                        return count();
                      });
}

absl::Status QueueMerge(CudaRank& rank, const std::byte* from, std::byte* into, int64_t tokens) {
  return rank.Check(
      gpu::MergeStates(rank.States(from, tokens), rank.States(into, tokens),
                       tokens * rank.config.heads, rank.config.head_dim, rank.stream.get()),
      "MergeStates");
}

absl::Status QueueCopyPages(CudaRank& rank, int layer, const std::vector<PageId>& pages,
                            std::byte* shard) {
  Upload lists(rank.stream, rank.upload);
  const auto pages_at = lists.Add(pages);
  RF_RETURN_IF_ERROR(lists.Send());
  return rank.Check(
      gpu::CopyPages({.pool = rank.slab.data(),
                      .page_stride = static_cast<int64_t>(rank.geometry.PageBytes()),
                      .layer_offset = static_cast<int64_t>(rank.geometry.LayerOffset(layer)),
                      .layer_bytes = static_cast<int64_t>(rank.geometry.LayerBytes()),
                      .pages = lists.At<const uint32_t>(pages_at),
                      .count = static_cast<int64_t>(pages.size()),
                      .shard = shard},
                     rank.stream.get()),
      "CopyPages");
}

absl::Status QueueStoreRows(CudaRank& rank, int layer, const std::vector<KvStore>& stores,
                            const std::byte* inbox) {
  std::vector<gpu::KvTarget> targets;
  for (const KvStore& store : stores) {
    for (int i = 0; i < store.rows; ++i) {
      const auto row = static_cast<size_t>(store.row + i);
      if (targets.size() <= row) targets.resize(row + 1);
      targets[row].page = store.page;
      targets[row].token_in_page = store.token_in_page + i;
    }
  }
  Upload lists(rank.stream, rank.upload);
  const auto targets_at = lists.Add(targets);
  RF_RETURN_IF_ERROR(lists.Send());
  return rank.Check(gpu::StoreRows({.inbox = inbox,
                                    .targets = lists.At<const gpu::KvTarget>(targets_at),
                                    .rows = static_cast<int64_t>(targets.size()),
                                    .kv_heads = rank.config.kv_heads,
                                    .head_dim = rank.config.head_dim,
                                    .pages = rank.Pages(layer)},
                                   rank.stream.get()),
                    "StoreRows");
}

absl::Status QueuePoison(CudaRank& rank, const std::vector<PageId>& pages) {
  Upload lists(rank.stream, rank.upload);
  const auto pages_at = lists.Add(pages);
  RF_RETURN_IF_ERROR(lists.Send());
  return rank.Check(
      gpu::PoisonPages(rank.slab.data(), static_cast<int64_t>(rank.geometry.PageBytes()),
                       lists.At<const uint32_t>(pages_at), static_cast<int64_t>(pages.size()),
                       rank.stream.get()),
      "PoisonPages");
}

absl::Status QueueWriteHeader(CudaRank& rank, const RoundHeader& header, std::byte* to,
                              bool keep_stop_mask) {
  const gpu::HeaderWords words = WordsOf(header);
  const auto write = keep_stop_mask ? gpu::ForwardHeader : gpu::WriteHeader;
  return rank.Check(write(words, to, rank.stream.get()), "WriteHeader");
}

absl::Status QueueCheckHeader(CudaRank& rank, const RoundHeader& expected, const std::byte* at,
                              const std::shared_ptr<LayerFlags>& flags) {
  RF_ASSIGN_OR_RETURN(std::byte* const report, rank.ZeroReport(sizeof(gpu::HeaderReport)));
  RF_RETURN_IF_ERROR(
      rank.Check(gpu::CheckHeader(WordsOf(expected), at,
                                  reinterpret_cast<gpu::HeaderReport*>(report), rank.stream.get()),
                 "CheckHeader"));
  return rank.CopyOut(report, sizeof(gpu::HeaderReport),
                      [expected, flags](const std::byte* bytes) -> absl::Status {
                        gpu::HeaderReport got;
                        std::memcpy(&got, bytes, sizeof(got));
                        if (got.mismatches > 0) {
                          return CheckRoundHeader(expected, HeaderOf(got.got));
                        }
                        if (flags != nullptr) flags->stop_mask.fetch_or(got.stop_mask);
                        return absl::OkStatus();
                      });
}

}  // namespace ringfill
