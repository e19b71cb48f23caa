// CPU devices of several ranks driven by hand through the operations of device.h, without
// communicators, plans or passes: the ranks lie in one process and read each other's buffers once
// an event says that they may.
#pragma once

#include <memory>
#include <vector>

#include "engine/compute/cpu/cpu_device.h"
#include "engine/model/token_id.h"

namespace ringfill {

// A sequence whose tokens lie on the ranks in stripes, dealt in turn.
struct RawSequence {
  std::vector<TokenId> tokens;             // whose KV is there
  std::vector<std::vector<PageId>> pages;  // [ranks]
};

struct RawRingOptions {
  int ranks = 1;
  int threads = 1;
  int stripe_tokens = 16;
  int64_t pages = 61;  // of a rank
  int tile_rows = 64;
  int query_tokens = 21;
  CpuModelOptions model{.dtype = DType::kF32, .kv_dtype = DType::kF32, .page_tokens = 16};
  HostStreamFactory make_stream = MakeInlineStream;
};

class RawRing {
 public:
  RawRing(std::shared_ptr<const Model> model, const RawRingOptions& options);

  int ranks() const { return options_.ranks; }
  Device& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }
  CpuModel& model() { return model_; }
  RawSequence NewSequence() const;

  struct Chunk {
    RawSequence* sequence;
    std::vector<TokenId> tokens;  // appended to it
  };
  // What is known about each new token of a chunk.
  struct Rows {
    std::vector<std::vector<float>> hidden;  // [tokens][width]
    std::vector<std::vector<float>> logits;  // [tokens][vocab]
    std::vector<float> next_logprob;         // [tokens - 1] of the chunk's next token
  };
  // Sharded tokens at home, KV shards going round; all chunks in one step.
  std::vector<Rows> Prefill(const std::vector<Chunk>& chunks);
  // Replicated tokens, in one batch: each chunk's tokens are appended to its sequence.
  std::vector<Rows> Replicate(const std::vector<Chunk>& chunks);

  // The batch of one rank's rows at home, for tests of single operations. Takes the pages.
  std::shared_ptr<RowBatch> HomeBatch(int rank, const std::vector<Chunk>& chunks);
  // What the rows of `batch` see of `source`, which keeps tokens up to each row's position.
  std::shared_ptr<AttendBatch> Sight(const RowBatch& batch, int source,
                                     const std::vector<Chunk>& chunks) const;
  int Home(int64_t position) const;
  int64_t Local(int64_t position) const;
  // Positions below `end` that `rank` keeps.
  int64_t Kept(int rank, int64_t end) const;

 private:
  struct RankState;

  // Gives the chunks' new tokens pages and appends them.
  void Extend(const std::vector<Chunk>& chunks);
  void RunRing(std::vector<RankState>& states);
  void Gather(const std::vector<DeviceBuffer>& sent, std::vector<DeviceBuffer>& gathered,
              size_t bytes);
  std::vector<float> LogitsOf(const std::vector<float>& hidden);
  std::vector<Rows> CollectRows(const std::vector<Chunk>& chunks, std::vector<RankState>& states);

  const RawRingOptions options_;
  CpuModel model_;
  std::vector<std::unique_ptr<CpuDevice>> devices_;
  std::vector<int64_t> pages_used_;  // [ranks]
};

// The deadline of every wait in these tests.
Instant InTwoMinutes();

}  // namespace ringfill
