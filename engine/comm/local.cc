#include "engine/comm/local.h"

#include <atomic>
#include <utility>

#include "base/check.h"
#include "engine/comm/lane.h"
#include "engine/comm/local_group.h"
#include "engine/comm/transfer.h"

namespace ringfill {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  ~LocalCommunicator() override {
    if (exchanges_.load() > 0 || gathers_.load() > 0) {
      group_->Abort(absl::CancelledError("the communicator was destroyed"));
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->ranks(); }

  TransferPtr StartExchange(ExchangeArgs args) override {
    RF_CHECK(args.to >= 0 && args.to < size() && args.from >= 0 && args.from < size());
    const bool here = size() == 1 && exchanges_.load() == 0 && AllDone(args.after);
    return Start(std::move(args), here, exchanges_, exchange_lane_,
                 [this](const ExchangeArgs& a) { return group_->Exchange(rank_, a); });
  }

  TransferPtr StartAllGather(AllGatherArgs args) override {
    RF_CHECK(args.recv.size() == args.send.size() * size());
    const bool here = gathers_.load() == 0 && AllDone(args.after);
    return Start(std::move(args), here, gathers_, gather_lane_,
                 [this](const AllGatherArgs& a) { return group_->AllGather(rank_, a); });
  }

  void Abort(absl::Status status) override { group_->Abort(std::move(status)); }
  void TraceTo(TraceBuffer* trace) override { trace_ = trace; }

 private:
  // Runs on the calling thread when `here`, else on the lane. `under_way` goes down before the
  // transfer completes, so that whoever awaited the last one may run the next on its own thread.
  template <typename Args, typename Move>
  TransferPtr Start(Args args, bool here, std::atomic<int>& under_way, Lane& lane, Move move) {
    auto transfer = std::make_shared<HostTransfer>();
    if (here) {
      Run(args, move, *transfer);
      return transfer;
    }
    RF_CHECK(under_way.fetch_add(1) < kMaxOutstandingTransfers);
    lane.Post([this, transfer, move, &under_way, args = std::move(args)] {
      Run(args, move, *transfer, &under_way);
    });
    return transfer;
  }

  template <typename Args, typename Move>
  void Run(const Args& args, Move move, HostTransfer& transfer,
           std::atomic<int>* under_way = nullptr) {
    TraceBuffer* const trace = trace_.load();
    const bool tracing = trace != nullptr && trace->enabled();
    const Instant begin = tracing ? Clock::Real().Now() : Instant();
    LocalGroup::Result result = move(args);
    if (tracing) trace->Add({args.label, TraceLane::kComm, begin, Clock::Real().Now()});
    if (under_way != nullptr) under_way->fetch_sub(1);
    transfer.Complete(std::move(result.status), result.transfer_time);
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
  std::atomic<TraceBuffer*> trace_{nullptr};
  std::atomic<int> exchanges_{0}, gathers_{0};  // on their lanes and not done
  Lane exchange_lane_, gather_lane_;            // last: their jobs use the rest
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int ranks, const Clock& clock) {
  RF_CHECK(ranks >= 1);
  auto group = std::make_shared<LocalGroup>(ranks, clock);
  std::vector<std::unique_ptr<Communicator>> ends;
  ends.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    ends.push_back(std::make_unique<LocalCommunicator>(group, rank));
  }
  return ends;
}

}  // namespace ringfill
