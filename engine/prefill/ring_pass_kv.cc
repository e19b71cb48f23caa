// Ring pass-KV: shards travel round the ring while attention to the shard at hand computes. Two
// buffers: the shard at hand, which also goes on to the next rank, and the one that comes.
//
// Source: Liu et al., "Ring Attention with Blockwise Transformers" (2023); visible lengths of rows
// replace masks between ranks.
#include "engine/prefill/kv_shards.h"

namespace ringfill {
namespace {

class RingPassKv final : public AttentionStrategy {
 public:
  RingPassKv(PassContext& pass, const std::vector<int>& chunks)
      : pass_(pass), shards_(pass, chunks, RingStrategy::kPassKv) {
    if (pass.ranks() == 1) return;
    for (int i = 0; i < 2; ++i) {
      ring_[i] = pass.rank.Reserve("ring shards", i, shards_.LargestMessage());
    }
  }

  void Attend(const AttentionLayer& layer) override {
    const int n = pass_.ranks();
    Device& device = pass_.rank.device();
    TransferPtr coming;
    if (n > 1) {
      shards_.WriteOwn(layer, ring_[0]);
      coming = StartRound(layer, 0);
    }
    shards_.AttendOwn(layer);
    for (int round = 1; round < n; ++round) {
      const int source = pass_.Beyond(-round);
      std::byte* at_hand = ring_[round % 2];
      pass_.transfers.WaitFor(coming);
      device.CheckHeader(Header(layer, round - 1, source), at_hand, layer.flags);
      if (round + 1 < n) {
        device.ForwardHeader(Header(layer, round, source), at_hand);
        coming = StartRound(layer, round);
      }
      shards_.AttendTo(layer, round, source, at_hand);
    }
  }

 private:
  RoundHeader Header(const AttentionLayer& layer, int round, int source) const {
    return pass_.Header(layer.layer, round, source, RoundKind::kKvShard, shards_.bytes(source));
  }

  // In round k a rank holds the shard of the rank k places back, and gets that of the one before.
  // What it gets overwrites the shard of round k-1: the attention to that is queued already.
  TransferPtr StartRound(const AttentionLayer& layer, int round) {
    Communicator::ExchangeArgs args;
    args.label = {OpKind::kExchange, layer.layer, round, RingStrategy::kPassKv, 0};
    args.to = pass_.Beyond(1);
    args.from = pass_.Beyond(-1);
    args.send = shards_.Message(ring_[round % 2], pass_.Beyond(-round));
    args.recv = shards_.Message(ring_[(round + 1) % 2], pass_.Beyond(-round - 1));
    args.after = {pass_.transfers.Record()};
    return pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kRound);
  }

  PassContext& pass_;
  KvShards shards_;
  std::byte* ring_[2] = {nullptr, nullptr};
};

}  // namespace

StrategyPtr MakeRingPassKv(PassContext& pass, const std::vector<int>& chunks) {
  return std::make_unique<RingPassKv>(pass, chunks);
}

}  // namespace ringfill
