// How the leader forms rings, of workers that say what the test wants.
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/tcp/connection.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/model/digest.h"
#include "engine/worker/process_workers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using testing::ElementsAre;

Instant HangLimit() { return Clock::Real().Now() + std::chrono::seconds(60); }

class ScriptedWorker {
 public:
  ScriptedWorker(const std::string& leader, const Secret& secret, const Sha256Digest& model,
                 int rank) {
    Credentials credentials;
    credentials.secret = &secret;
    credentials.own.role = PeerRole::kWorker;
    credentials.peer_role = PeerRole::kLeader;
    connection_ = Connection::Connect(leader, credentials, HangLimit()).value();
    JoinMessage join;
    join.rank = rank;
    join.model_digest = model;
    join.best_isa = DetectCpuIsa();
    join.data_address = absl::StrCat("127.0.0.1:", rank + 1);
    Send(join);
    Next<WelcomeMessage>();
    Send(ReadyMessage{});
  }

  void Send(const ControlMessage& message) { EXPECT_TRUE(MaySend(message)); }
  // False: the leader has closed the connection.
  bool MaySend(const ControlMessage& message) {
    const EncodedControl encoded = EncodeControl(message);
    return connection_->Send(encoded.type, std::as_bytes(std::span(encoded.payload)), HangLimit())
        .ok();
  }
  // The next message of a kind; those of others before it are dropped.
  template <typename M>
  M Next() {
    while (true) {
      const Connection::Message message = connection_->Receive(HangLimit()).value();
      const ControlMessage decoded = DecodeControl(message.type, message.payload).value();
      if (const auto* wanted = std::get_if<M>(&decoded)) return *wanted;
    }
  }
  FormMessage Answer(const absl::Status& status, std::vector<int32_t> missing = {}) {
    const FormMessage form = Next<FormMessage>();
    Send(FormedMessage{form.attempt, status, std::move(missing)});
    return form;
  }
  void Go() { connection_->Close(); }

 private:
  std::unique_ptr<Connection> connection_;
};

// Says what does not matter, again and again, as long as it lives.
class Chatter {
 public:
  explicit Chatter(ScriptedWorker& worker)
      : thread_([&worker, stop = stop_.get_future()] {
          while (stop.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout) {
            if (!worker.MaySend(ProgressMessage{})) return;
          }
        }) {}
  ~Chatter() {
    stop_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> stop_;
  std::thread thread_;
};

const absl::Status kMissing = absl::DeadlineExceededError("somebody is missing");
const absl::Status kForGood = absl::UnauthenticatedError("somebody else answers there");

class ReformTest : public testing::Test {
 protected:
  using Formed = absl::StatusOr<std::vector<int>>;

  // A leader and its first ring, of `ranks`.
  void Start(int ranks) {
    model_ = LoadModelOrDie(WriteTinyModel(TinyModelOptions()));
    options_.roster.listen = Listener::Bind().value()->address();
    options_.roster.secret = secret_;
    options_.roster.start_workers = false;
    options_.roster.heartbeat_timeout = std::chrono::minutes(10);
    options_.form_timeout = std::chrono::minutes(10);
    options_.most_form_timeout = std::chrono::minutes(40);
    options_.least_attempt = Duration(0);
    options_.reform_limit = std::chrono::hours(2);
    options_.first_retry = std::chrono::minutes(10);
    change_(options_);
    WorkersSpec spec;
    spec.ranks = ranks;
    spec.pages_per_rank = 8;
    spec.min_round_timeout = std::chrono::minutes(10);
    spec.clock = &Clock::Real();
    auto leader = std::async(std::launch::async,
                             [&] { return MakeProcessWorkers(spec, *model_, options_, metrics_); });
    for (int r = 0; r < ranks; ++r) ranks_.push_back(Join(r));
    for (const auto& rank : ranks_) rank->Answer(absl::OkStatus());
    workers_ = leader.get().value();
  }
  std::unique_ptr<ScriptedWorker> Join(int rank) const {
    return std::make_unique<ScriptedWorker>(options_.roster.listen, secret_,
                                            ModelDigest(model_->file()), rank);
  }
  static void OneAttempt(ProcessWorkersOptions& options) { options.reform_limit = Duration(0); }
  int64_t Lost() const {
    int64_t lost = 0;
    for (const Counter* counter : metrics_.lost) lost += counter->Value();
    return lost;
  }
  std::future<Formed> Reform(const std::function<bool()>& while_waiting = nullptr) {
    return std::async(std::launch::async, [=, epoch = ++epoch_, this] {
      return workers_->Reform(epoch, while_waiting);
    });
  }
  bool EventuallyWantsReform() {
    const Instant limit = HangLimit();
    while (!workers_->WantsReform()) {
      if (Clock::Real().Now() > limit) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::function<void(ProcessWorkersOptions&)> change_ = [](ProcessWorkersOptions&) {};
  const Secret secret_ = Secret::Random();
  ProcessWorkersOptions options_;
  Metrics registry_;
  WorkerMetrics metrics_{registry_};
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<ScriptedWorker>> ranks_;
  std::unique_ptr<Workers> workers_;
  uint64_t epoch_ = 1;
};

TEST_F(ReformTest, AMemberThatGoesEndsTheAttempt) {
  Start(3);
  auto formed = Reform();
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Next<FormMessage>().members.size(), 3u);
  ranks_[1]->Go();
  EXPECT_EQ(ranks_[0]->Answer(absl::OkStatus()).members.size(), 2u);
  ranks_[2]->Answer(absl::OkStatus());
  EXPECT_THAT(formed.get().value(), ElementsAre(0, 2));
}

TEST_F(ReformTest, AFailureThatNobodyElseKnowsOfEndsTheAttempt) {
  Start(2);
  auto formed = Reform();
  // Rank 1 says nothing to this one.
  ranks_[0]->Answer(absl::FailedPreconditionError("it is another rank's address"));
  const uint64_t first = ranks_[1]->Next<FormMessage>().attempt;
  ranks_[0]->Answer(absl::OkStatus());
  EXPECT_EQ(ranks_[1]->Answer(absl::OkStatus()).attempt, first + 1);
  EXPECT_THAT(formed.get().value(), ElementsAre(0, 1));
}

// The address of rank 1 is none, say, or something else answers there: whoever finds that out
// ends the attempt, and the others serve without it.
TEST_F(ReformTest, ARankAtWhichOthersFailForGoodIsLeftOut) {
  Start(3);
  auto formed = Reform();
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(ranks_[0]->Answer(kForGood, {1}).members.size(), 3u);
    EXPECT_EQ(ranks_[2]->Next<FormMessage>().members.size(), 3u);
  }
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ranks_[rank]->Answer(absl::OkStatus()).members.size(), 2u);
  }
  EXPECT_THAT(formed.get().value(), ElementsAre(0, 2));
  EXPECT_EQ(Lost(), 0);
}

// It names nobody.
TEST_F(ReformTest, ARankThatAloneFailsForGoodIsLeftOut) {
  Start(2);
  auto formed = Reform();
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(ranks_[1]->Answer(kForGood).members.size(), 2u);
    EXPECT_EQ(ranks_[0]->Next<FormMessage>().members.size(), 2u);
  }
  EXPECT_EQ(ranks_[0]->Answer(absl::OkStatus()).members.size(), 1u);
  EXPECT_THAT(formed.get().value(), ElementsAre(0));
  EXPECT_EQ(Lost(), 0);
}

TEST_F(ReformTest, OnlyAnAttemptThatWasTooShortMakesTheNextOneLonger) {
  Start(2);
  auto formed = Reform();
  const int64_t first = ranks_[0]->Answer(kForGood).timeout_ms;
  ranks_[1]->Next<FormMessage>();
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Answer(kMissing).timeout_ms, first);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Answer(absl::OkStatus()).timeout_ms, 2 * first);
  EXPECT_TRUE(formed.get().ok());
}

// Nothing runs, nobody comes or goes: it is for the leader to try again.
TEST_F(ReformTest, RanksThatCouldNotFormARingAreTriedAgain) {
  change_ = [](ProcessWorkersOptions& options) {
    OneAttempt(options);
    options.first_retry = std::chrono::milliseconds(1);
  };
  Start(2);
  auto formed = Reform();
  ranks_[0]->Answer(kMissing, {1});
  ranks_[1]->Answer(kMissing, {0});
  EXPECT_TRUE(absl::IsUnavailable(formed.get().status()));
  ASSERT_TRUE(EventuallyWantsReform());
  formed = Reform();
  for (const auto& rank : ranks_) rank->Answer(absl::OkStatus());
  EXPECT_THAT(formed.get().value(), ElementsAre(0, 1));
  EXPECT_FALSE(workers_->WantsReform());
}

TEST_F(ReformTest, AWorkerThatCameInTheLastAttemptIsLetInAtOnce) {
  change_ = OneAttempt;
  Start(2);
  ranks_[1]->Go();
  ASSERT_TRUE(EventuallyWantsReform());
  auto formed = Reform();
  const FormMessage form = ranks_[0]->Next<FormMessage>();
  EXPECT_EQ(form.members.size(), 1u);
  ranks_[1] = Join(1);
  ranks_[1]->Next<BeatMessage>();  // the leader has known it for a while
  ranks_[0]->Send(FormedMessage{form.attempt, kMissing, {}});
  EXPECT_TRUE(absl::IsUnavailable(formed.get().status()));
  ASSERT_TRUE(EventuallyWantsReform());
  formed = Reform();
  for (const auto& rank : ranks_) EXPECT_EQ(rank->Answer(absl::OkStatus()).members.size(), 2u);
  EXPECT_THAT(formed.get().value(), ElementsAre(0, -1));
}

// However much it says, and the others go on without it at once.
TEST_F(ReformTest, AWorkerThatDoesNotAnswerIsDropped) {
  change_ = [](ProcessWorkersOptions& options) {
    OneAttempt(options);
    options.form_timeout = std::chrono::seconds(3);
  };
  Start(2);
  auto formed = Reform();
  const Chatter chatter(*ranks_[1]);
  ranks_[0]->Answer(kMissing, {1});
  EXPECT_TRUE(absl::IsUnavailable(formed.get().status()));
  EXPECT_TRUE(workers_->WantsReform());
  formed = Reform();
  EXPECT_EQ(ranks_[0]->Answer(absl::OkStatus()).members.size(), 1u);
  EXPECT_THAT(formed.get().value(), ElementsAre(0));
}

TEST_F(ReformTest, EndsWhenItIsNotWantedAnyMore) {
  Start(2);
  const Formed formed = Reform([] { return false; }).get();
  EXPECT_TRUE(absl::IsCancelled(formed.status())) << formed.status();
  EXPECT_EQ(Lost(), 0);
}

TEST_F(ReformTest, EndsWhileAWorkerGoesOnTalking) {
  Start(2);
  auto formed = Reform([] { return false; });
  const Chatter chatter(*ranks_[1]);
  ASSERT_EQ(formed.wait_until(HangLimit()), std::future_status::ready);
  EXPECT_TRUE(absl::IsCancelled(formed.get().status()));
}

TEST_F(ReformTest, EndsBetweenTwoAttempts) {
  change_ = [](ProcessWorkersOptions& options) {
    options.least_attempt = std::chrono::minutes(10);
  };
  Start(2);
  ranks_[1]->Go();
  ASSERT_TRUE(EventuallyWantsReform());
  auto formed = Reform([this] { return metrics_.dead_links.Value() == 0; });
  ranks_[0]->Answer(kMissing);
  ranks_[0]->Send(DeadLinkMessage{1, 1});  // heard when the attempt is over
  EXPECT_TRUE(absl::IsCancelled(formed.get().status()));
  formed = Reform();
  EXPECT_EQ(ranks_[0]->Answer(absl::OkStatus()).epoch, epoch_);  // no more of the last one
}

TEST_F(ReformTest, NobodyHasALinkToItself) {
  Start(2);
  auto formed = Reform();
  ranks_[1]->Send(DeadLinkMessage{1, 1});
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(ranks_[0]->Answer(absl::OkStatus()).members.size(), 2u);
    EXPECT_EQ(ranks_[1]->Answer(kMissing, {1}).members.size(), 2u);
  }
  for (const auto& rank : ranks_) rank->Answer(absl::OkStatus());
  EXPECT_THAT(formed.get().value(), ElementsAre(0, 1));
  EXPECT_EQ(metrics_.dead_links.Value(), 0);
}

}  // namespace
}  // namespace ringfill
