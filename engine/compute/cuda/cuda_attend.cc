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
  std::vector<int64_t> most_visible;  // [runs]
  int64_t tokens = 0;
  SeenKeys seen;
};

ActiveTiles TilesOf(const Device::AttendArgs& args) {
  const AttendBatch& batch = *args.batch;
  ActiveTiles out;
  out.most_visible.resize(batch.runs.size());
  for (const QueryTile& tile : batch.tiles) {
    if (((args.stopped >> tile.chunk) & 1) != 0 || (args.only_wanted && !tile.wanted)) continue;
    RF_DCHECK(tile.tokens > 0 && tile.row + tile.tokens <= args.rows);
    const auto visible = batch.visible.begin() + static_cast<ptrdiff_t>(tile.row);
    for (int t = 0; t < tile.tokens; ++t) out.seen.Add(visible[t] - tile.begin);
    const int64_t last = visible[tile.tokens - 1];
    int64_t& most = out.most_visible[static_cast<size_t>(tile.run)];
    most = std::max(most, last);
    out.tokens += tile.tokens;
    out.spans.push_back({.token = tile.row,
                         .tokens = tile.tokens,
                         .run = tile.run,
                         .bit = tile.chunk,
                         .visible = last,
                         .begin = tile.begin});
  }
  return out;
}

// One launch of the kernel: its work, and what the rows see where the batch does not say it.
struct KernelPart {
  std::vector<gpu::PrefillWork> work;
  std::vector<int64_t> begin;    // [rows]; empty when all see keys from the first one on
  std::vector<int64_t> visible;  // [rows]; empty: the batch's
};

KernelPart PartOf(const std::vector<gpu::TokenSpan>& spans, size_t rows, int group) {
  KernelPart out;
  out.work = gpu::PlanPrefill(spans, group);
  for (const gpu::TokenSpan& span : spans) {
    if (span.begin == 0) continue;
    out.begin.resize(rows);
    std::fill_n(out.begin.begin() + static_cast<ptrdiff_t>(span.token), span.tokens, span.begin);
  }
  return out;
}

// The part of rows that all see as much as their span.
KernelPart LevelPartOf(const std::vector<gpu::TokenSpan>& spans, size_t rows, int group) {
  KernelPart out = PartOf(spans, rows, group);
  for (const gpu::TokenSpan& span : spans) {
    out.visible.resize(rows);
    std::fill_n(out.visible.begin() + static_cast<ptrdiff_t>(span.token), span.tokens,
                span.visible);
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

// An Attend, cut between the library and the kernels.
class AttendRun {
 public:
  AttendRun(CudaRank& rank, const Device::AttendArgs& args)
      : rank_(rank),
        args_(args),
        lists_(rank.stream, rank.upload),
        attention_{.type = gpu::Element::kBF16,
                   .head_dim = rank.config.head_dim,
                   .kv_heads = rank.config.kv_heads,
                   .group = rank.group(),
                   .tokens = args.rows,
                   .q = args.q,
                   .state = rank.States(args.state, args.rows),
                   .clear = false,
                   .kv = PagesOf(rank, args),
                   .page_table = nullptr,
                   .runs = nullptr,
                   .visible = nullptr,
                   .begin = nullptr} {}

  absl::Status Run() {
    ActiveTiles tiles = TilesOf(args_);
    AttentionSplit split = Split(tiles);
    // When the kernel works on every row, it empties states by not reading them.
    attention_.clear = args_.clear && tiles.tokens == args_.rows && split.entries.empty();
    if (args_.clear && !attention_.clear) RF_RETURN_IF_ERROR(ClearStates());
    if (!attention_.clear) {
      std::erase_if(split.rest, [](const gpu::TokenSpan& span) { return span.keys() == 0; });
    }
    if (split.rest.empty() && split.entries.empty()) return absl::OkStatus();
    RF_RETURN_IF_ERROR(Launch(split));
    return Report(tiles.seen);
  }

 private:
  struct Places {
    Upload::Place work, begin, visible;
  };

  AttentionSplit Split(const ActiveTiles& tiles) const {
    if (rank_.fused == nullptr) return {.entries = {}, .before = {}, .rest = tiles.spans};
    const AttendBatch& batch = *args_.batch;
    return SplitAttention(tiles.spans, batch.visible,
                          rank_.fused->TakesRuns(batch.runs, tiles.most_visible, attention_.kv),
                          rank_.fused->limits());
  }

  absl::Status ClearStates() const {
    const ModelConfig& config = rank_.config;
    return rank_.Check(gpu::ClearStates(attention_.state, args_.rows * config.heads,
                                        config.head_dim, rank_.stream.get()),
                       "ClearStates");
  }

  absl::Status Launch(const AttentionSplit& split) {
    const std::vector<int64_t>& visible = args_.batch->visible;
    const KernelPart before = LevelPartOf(split.before, visible.size(), rank_.group());
    const KernelPart rest = PartOf(split.rest, visible.size(), rank_.group());
    const RunLists runs(args_.batch->runs, args_.shard != nullptr);
    const Upload::Place runs_at = lists_.Add(runs.views);
    const Upload::Place pages_at = lists_.Add(runs.pages);
    const Upload::Place visible_at = lists_.Add(visible);
    const Places before_at = Add(before, visible_at), rest_at = Add(rest, visible_at);
    mask_at_ = lists_.AddZeros(sizeof(unsigned long long));
    FusedPrefill::Lists entries;
    if (!split.entries.empty()) entries = rank_.fused->Add(split.entries, lists_);
    RF_RETURN_IF_ERROR(lists_.Send());
    attention_.runs = lists_.At<const gpu::KvRunView>(runs_at);
    attention_.page_table = lists_.At<const uint32_t>(pages_at);
    RF_RETURN_IF_ERROR(LaunchKernel(before, before_at));
    if (entries.calls > 0) {
      RF_RETURN_IF_ERROR(rank_.fused->Run(attention_, entries, lists_,
                                          lists_.At<unsigned long long>(mask_at_),
                                          rank_.stream.get()));
    }
    return LaunchKernel(rest, rest_at);
  }

  Places Add(const KernelPart& part, Upload::Place visible_at) {
    return {lists_.Add(part.work), lists_.Add(part.begin),
            part.visible.empty() ? visible_at : lists_.Add(part.visible)};
  }

  absl::Status LaunchKernel(const KernelPart& part, const Places& at) {
    attention_.visible = lists_.At<const int64_t>(at.visible);
    attention_.begin = part.begin.empty() ? nullptr : lists_.At<const int64_t>(at.begin);
    return rank_.Check(gpu::AttendPrefill({.attention = attention_,
                                           .work = lists_.At<const gpu::PrefillWork>(at.work),
                                           .works = static_cast<int>(part.work.size()),
                                           .nonfinite = lists_.At<unsigned long long>(mask_at_)},
                                          rank_.stream.get()),
                       "AttendPrefill");
  }

  // What of it the host learns when it is done.
  absl::Status Report(const SeenKeys& seen) {
    const auto count = [&rank = rank_, seen] {
      rank.seen.Add(seen);
      return absl::OkStatus();
    };
    if (args_.flags == nullptr) {
      rank_.stream.Then(count);
      return absl::OkStatus();
    }
    return rank_.CopyOut(
        lists_.At<const std::byte>(mask_at_), sizeof(uint64_t),
        [flags = args_.flags, round = args_.label.round, count](const std::byte* got) {
          uint64_t chunks;
          std::memcpy(&chunks, got, sizeof(chunks));
          NoteFault(*flags, chunks, round);
          return count();
        });
  }

  CudaRank& rank_;
  const Device::AttendArgs& args_;
  Upload lists_;
  gpu::AttentionArgs attention_;
  Upload::Place mask_at_{};
};

}  // namespace

absl::Status QueueAttend(CudaRank& rank, const Device::AttendArgs& args) {
  return AttendRun(rank, args).Run();
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
