// Pass-Q: queries travel round the ring while every rank keeps its KV. In each round a rank attends
// with its own pages on behalf of the queries at hand; the partial states go to their owner in the
// same round, from the rank that had them, and are merged as they come. For few new tokens over a
// long cached prefix.
//
// Under way at once: two buffers of queries, two of states that leave and one of states that come.
// All of a rank's rows travel, also those of chunks that another strategy serves.
//
// Source: Yang et al., "Context Parallelism for Scalable Million-Token Inference" (2024), with the
// states returned round by round rather than by one all-to-all at the end.
#include <algorithm>

#include "engine/prefill/attention_strategy.h"

namespace ringfill {
namespace {

class PassQ final : public AttentionStrategy {
 public:
  PassQ(PassContext& pass, const std::vector<int>& chunks) : pass_(pass) {
    size_t largest_q = 0;
    size_t largest_state = 0;
    for (int rank = 0; rank < pass.ranks(); ++rank) {
      batches_.push_back(std::make_shared<const AttendBatch>(
          pass.layout.MakeAttend(chunks, rank, pass.me(), pass.OwnRuns(chunks))));
      largest_q = std::max(largest_q, QueryMessage(nullptr, rank).size());
      largest_state = std::max(largest_state, StateMessage(nullptr, rank).size());
    }
    if (pass.ranks() == 1) return;
    for (int i = 0; i < 2; ++i) {
      queries_[i] = pass.rank.Reserve("ring queries", i, largest_q);
      leaving_[i] = pass.rank.Reserve("ring states", i, largest_state);
    }
    returning_ = pass.rank.Reserve("returned states", 0, StateMessage(nullptr, pass.me()).size());
  }

  void Start(const AttentionLayer& layer) override {
    if (pass_.ranks() == 1) return;
    RoundHeader header = QueryHeader(layer, 0, pass_.me());
    header.stop_mask = layer.stop_mask;
    pass_.rank.device().WriteHeader(header, pass_.q - sizeof(RoundHeader));
    coming_ = SendQueries(layer, 0);
  }

  void Attend(const AttentionLayer& layer) override {
    const int n = pass_.ranks();
    Device& device = pass_.rank.device();
    AttendFor(layer, 0, pass_.me(), pass_.q, pass_.state, layer.clear);
    TransferPtr returned;
    for (int round = 1; round < n; ++round) {
      const int owner = pass_.Beyond(-round);
      std::byte* at_hand = queries_[round % 2];
      std::byte* states = leaving_[round % 2];
      pass_.transfers.WaitFor(coming_);
      device.CheckHeader(QueryHeader(layer, round - 1, owner), at_hand, layer.flags);
      if (round + 1 < n) {
        device.ForwardHeader(QueryHeader(layer, round, owner), at_hand);
        coming_ = SendQueries(layer, round);
      }
      AttendFor(layer, round, owner, at_hand + sizeof(RoundHeader), states + sizeof(RoundHeader),
                true);
      device.WriteHeader(StateHeader(layer, round, pass_.me(), owner), states);
      // The states of the round before have had this round's attention to arrive.
      if (round > 1) MergeReturned(layer, round - 1, returned);
      returned = ReturnStates(layer, round);
    }
    if (n > 1) MergeReturned(layer, n - 1, returned);
  }

 private:
  std::span<std::byte> QueryMessage(std::byte* at, int owner) const {
    return {at,
            sizeof(RoundHeader) + pass_.rank.device().QueryBytes(pass_.layout.rows(owner).rows())};
  }
  std::span<std::byte> StateMessage(std::byte* at, int owner) const {
    return {at,
            sizeof(RoundHeader) + pass_.rank.device().StateBytes(pass_.layout.rows(owner).rows())};
  }
  RoundHeader QueryHeader(const AttentionLayer& layer, int round, int owner) const {
    return pass_.Header(layer.layer, round, owner, RoundKind::kQueries,
                        QueryMessage(nullptr, owner).size() - sizeof(RoundHeader));
  }
  RoundHeader StateHeader(const AttentionLayer& layer, int round, int holder, int owner) const {
    return pass_.Header(layer.layer, round, holder, RoundKind::kStates,
                        StateMessage(nullptr, owner).size() - sizeof(RoundHeader));
  }

  // In round k a rank holds the queries of the rank k places back, and gets those of the one
  // before.
  TransferPtr SendQueries(const AttentionLayer& layer, int round) {
    std::byte* at_hand = round == 0 ? pass_.q - sizeof(RoundHeader) : queries_[round % 2];
    Communicator::ExchangeArgs args;
    args.label = {OpKind::kExchange, layer.layer, round, RingStrategy::kPassQ, 0};
    args.to = pass_.Beyond(1);
    args.from = pass_.Beyond(-1);
    args.send = QueryMessage(at_hand, pass_.Beyond(-round));
    args.recv = QueryMessage(queries_[(round + 1) % 2], pass_.Beyond(-round - 1));
    args.after = {pass_.transfers.Record()};
    return pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kRound);
  }

  // The rank k places on holds this rank's queries in round k.
  TransferPtr ReturnStates(const AttentionLayer& layer, int round) {
    Communicator::ExchangeArgs args;
    args.label = {OpKind::kExchange, layer.layer, round, RingStrategy::kPassQ, 0};
    args.to = pass_.Beyond(-round);
    args.from = pass_.Beyond(round);
    args.send = StateMessage(leaving_[round % 2], pass_.Beyond(-round));
    args.recv = StateMessage(returning_, pass_.me());
    args.after = {pass_.transfers.Record()};
    return pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kRound);
  }

  void MergeReturned(const AttentionLayer& layer, int round, const TransferPtr& returned) {
    Device& device = pass_.rank.device();
    pass_.transfers.WaitFor(returned);
    device.CheckHeader(StateHeader(layer, round, pass_.Beyond(round), pass_.me()), returning_,
                       layer.flags);
    if (pass_.rows() == 0) return;
    device.MergeState({OpKind::kMerge, layer.layer, round, RingStrategy::kPassQ, 0},
                      returning_ + sizeof(RoundHeader), pass_.state, pass_.rows());
  }

  void AttendFor(const AttentionLayer& layer, int round, int owner, const std::byte* q,
                 std::byte* state, bool clear) {
    Device::AttendArgs args;
    args.rows = pass_.layout.rows(owner).rows();
    if (args.rows == 0) return;
    args.label = {OpKind::kAttend, layer.layer, round, RingStrategy::kPassQ, 0};
    args.batch = batches_[static_cast<size_t>(owner)];
    args.q = q;
    args.state = state;
    args.clear = clear;
    args.only_wanted = layer.only_wanted;
    args.stopped = layer.stopped;
    args.flags = layer.flags;
    pass_.rank.device().Attend(args);
  }

  PassContext& pass_;
  std::vector<std::shared_ptr<const AttendBatch>> batches_;  // [ranks] of the queries
  std::byte* queries_[2] = {nullptr, nullptr};
  std::byte* leaving_[2] = {nullptr, nullptr};
  std::byte* returning_ = nullptr;
  TransferPtr coming_;
};

}  // namespace

StrategyPtr MakePassQ(PassContext& pass, const std::vector<int>& chunks) {
  return std::make_unique<PassQ>(pass, chunks);
}

}  // namespace ringfill
