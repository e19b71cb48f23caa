// Gather-KV: every rank gets all shards of a layer at once, by shifted pairwise exchanges into a
// buffer a rank, and attends to them as they come.
#include "engine/prefill/kv_shards.h"

namespace ringfill {
namespace {

class GatherKv final : public AttentionStrategy {
 public:
  GatherKv(PassContext& pass, std::unique_ptr<KvShards> shards)
      : pass_(pass), shards_(std::move(shards)) {
    for (int rank = 0; rank < pass.ranks(); ++rank) {
      buffers_.push_back(
          pass.ranks() == 1
              ? nullptr
              : pass.rank.Reserve("gathered shards", rank, shards_->Message(nullptr, rank).size()));
    }
  }

  void Attend(const AttentionLayer& layer) override {
    const int n = pass_.ranks();
    std::vector<TransferPtr> coming(static_cast<size_t>(n));
    if (n > 1) {
      shards_->WriteOwn(layer, Buffer(pass_.me()));
      const EventPtr written = pass_.transfers.Record();
      for (int k = 1; k < n; ++k) coming[static_cast<size_t>(k)] = StartShift(layer, k, written);
    }
    shards_->AttendOwn(layer);
    for (int k = 1; k < n; ++k) {
      const int source = pass_.Beyond(-k);
      pass_.transfers.WaitFor(coming[static_cast<size_t>(k)]);
      pass_.rank.device().CheckHeader(
          pass_.Header(layer.layer, 0, source, RoundKind::kKvShard, shards_->bytes(source)),
          Buffer(source), layer.flags);
      shards_->AttendTo(layer, k, source, Buffer(source));
    }
  }

 private:
  std::byte* Buffer(int rank) const { return buffers_[static_cast<size_t>(rank)]; }

  TransferPtr StartShift(const AttentionLayer& layer, int k, const EventPtr& written) {
    const int source = pass_.Beyond(-k);
    Communicator::ExchangeArgs args;
    args.label = {OpKind::kExchange, layer.layer, k, RingStrategy::kGatherKv, 0};
    args.to = pass_.Beyond(k);
    args.from = source;
    args.send = shards_->Message(Buffer(pass_.me()), pass_.me());
    args.recv = shards_->Message(Buffer(source), source);
    args.after = {written};
    return pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kRound);
  }

  PassContext& pass_;
  std::unique_ptr<KvShards> shards_;
  std::vector<std::byte*> buffers_;  // [ranks]
};

}  // namespace

StrategyPtr MakeGatherKv(PassContext& pass, const std::vector<int>& chunks) {
  auto shards = std::make_unique<KvShards>(pass, chunks, RingStrategy::kGatherKv);
  if (pass.ranks() > 1 && shards->AllMessages() > pass.rank.options().gather_bytes) {
    return MakeRingPassKv(pass, chunks);
  }
  return std::make_unique<GatherKv>(pass, std::move(shards));
}

}  // namespace ringfill
