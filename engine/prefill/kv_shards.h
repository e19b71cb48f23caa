// One layer of the KV of a group of chunks, rank by rank, as ring pass-KV and gather-KV carry it: a
// header, then each chunk's pages in local order.
#pragma once

#include <memory>
#include <vector>

#include "engine/prefill/attention_strategy.h"

namespace ringfill {

class KvShards {
 public:
  KvShards(PassContext& pass, const std::vector<int>& chunks, RingStrategy strategy);

  size_t bytes(int rank) const { return bytes_[static_cast<size_t>(rank)]; }  // of the payload
  size_t LargestMessage() const;
  size_t AllMessages() const;
  // A buffer's part that carries the shard of `rank`, header included.
  std::span<std::byte> Message(std::byte* buffer, int rank) const {
    return {buffer, sizeof(RoundHeader) + bytes(rank)};
  }

  // Header and pages of this rank to `buffer`.
  void WriteOwn(const AttentionLayer& layer, std::byte* buffer);
  // The queries of this rank against a received shard.
  void AttendTo(const AttentionLayer& layer, int round, int source, const std::byte* buffer);
  // The same against its own pages, which comes first.
  void AttendOwn(const AttentionLayer& layer);

 private:
  void Attend(const AttentionLayer& layer, int round, int source, const std::byte* shard);

  PassContext& pass_;
  const RingStrategy strategy_;
  std::vector<size_t> bytes_;  // [ranks]
  std::shared_ptr<const std::vector<PageId>> own_pages_;
  std::vector<std::shared_ptr<const AttendBatch>> batches_;  // [ranks] of the KV
};

}  // namespace ringfill
