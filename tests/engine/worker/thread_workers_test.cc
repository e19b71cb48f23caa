// What ranks as threads do to the devices and communicators that a backend gives them.
#include "engine/worker/thread_workers.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/local.h"
#include "gtest/gtest.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

// An end that is counted while it lives.
class CountedEnd final : public Communicator {
 public:
  CountedEnd(std::unique_ptr<Communicator> end, std::shared_ptr<std::atomic<int>> ends)
      : end_(std::move(end)), ends_(std::move(ends)) {
    ++*ends_;
  }
  ~CountedEnd() override { --*ends_; }

  int rank() const override { return end_->rank(); }
  int size() const override { return end_->size(); }
  TransferPtr StartExchange(ExchangeArgs args) override {
    return end_->StartExchange(std::move(args));
  }
  TransferPtr StartAllGather(AllGatherArgs args) override {
    return end_->StartAllGather(std::move(args));
  }
  void Abort(absl::Status status) override { end_->Abort(std::move(status)); }
  void TraceTo(TraceBuffer* trace) override { end_->TraceTo(trace); }

 private:
  const std::unique_ptr<Communicator> end_;
  const std::shared_ptr<std::atomic<int>> ends_;
};

// A device's stream, which goes with it.
class LastStream final : public HostStream {
 public:
  LastStream(std::unique_ptr<HostStream> stream, std::shared_ptr<std::atomic<int>> ends)
      : stream_(std::move(stream)), ends_(std::move(ends)) {}
  ~LastStream() override { EXPECT_EQ(ends_->load(), 0) << "a device went before an end"; }

  void Enqueue(const OpLabel& label, std::function<absl::Status()> fn) override {
    stream_->Enqueue(label, std::move(fn));
  }
  EventPtr Record() override { return stream_->Record(); }
  void WaitFor(EventPtr event, Instant deadline) override {
    stream_->WaitFor(std::move(event), deadline);
  }
  absl::Status Synchronize(Instant deadline) override { return stream_->Synchronize(deadline); }
  absl::Status status() const override { return stream_->status(); }
  void Clear() override { stream_->Clear(); }
  StreamTimes TakeTimes() override { return stream_->TakeTimes(); }

 private:
  const std::unique_ptr<HostStream> stream_;
  const std::shared_ptr<std::atomic<int>> ends_;
};

WorkersSpec Spec(int ranks) {
  WorkersSpec spec;
  spec.ranks = ranks;
  spec.pages_per_rank = 8;
  spec.min_round_timeout = std::chrono::minutes(10);
  spec.clock = &Clock::Real();
  return spec;
}

// Other ranks may still write into a rank's memory.
TEST(ThreadWorkersTest, AllEndsGoBeforeTheFirstDevice) {
  const auto ends = std::make_shared<std::atomic<int>>(0);
  ThreadWorkersOptions options;
  options.make_stream = [ends](const Clock& clock, TraceBuffer* trace) {
    return std::make_unique<LastStream>(MakeInlineStream(clock, trace), ends);
  };
  options.make_group = [ends](int ranks, uint64_t) {
    auto group = MakeLocalGroup(ranks);
    for (auto& end : group) end = std::make_unique<CountedEnd>(std::move(end), ends);
    return group;
  };
  const auto workers =
      MakeThreadWorkers(Spec(3), LoadModelOrDie(WriteTinyModel(TinyModelOptions())), options);
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_EQ(ends->load(), 3);
}

}  // namespace
}  // namespace ringfill
