// Clients that hold connections or work for nothing: others are served all the same.
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "server/rpc/rpc_services.h"
#include "tests/server/sockets.h"
#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

TEST(IdleConnectionsTest, DoNotHoldUpTheMetrics) {
  constexpr int kIdle = 6;
  constexpr auto kFarBelowTheirTimeouts = std::chrono::seconds(10);
  TestDaemon daemon;
  std::vector<int> idle;
  for (int i = 0; i < kIdle; ++i) {
    idle.push_back(ConnectTcp(daemon.daemon().metrics_address()));
    ASSERT_GE(idle.back(), 0);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(HttpGet(daemon.daemon().metrics_address(), "/metrics"), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, kFarBelowTheirTimeouts);
  for (const int fd : idle) close(fd);
}

// Tokenize calls of long texts, all under way at once.
class LongTexts {
 public:
  LongTexts(v1::Ringfill::Stub& stub, int count) : calls_(count) {
    while (request_.prompt().text().size() < (1 << 20)) {
      request_.mutable_prompt()->mutable_text()->append("words and more words, ");
    }
    for (Call& call : calls_) {
      stub.async()->Tokenize(&call.context, &request_, &call.response, [this](grpc::Status) {
        absl::MutexLock lock(&mutex_);
        ++ended_;
      });
    }
  }

  ~LongTexts() { WaitEnded(static_cast<int>(calls_.size())); }

  void WaitEnded(int count) {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ended_ >= count; };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&enough));
  }

  void Cancel() {
    for (Call& call : calls_) call.context.TryCancel();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
  };

  v1::TokenizeRequest request_;
  std::vector<Call> calls_;
  absl::Mutex mutex_;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(QueuedConversionTest, DoesNotRunWhenItsClientHasCancelled) {
  constexpr int kCalls = 40;
  TestDaemon daemon;
  LongTexts texts(daemon.stub(), kCalls);
  texts.WaitEnded(1);  // others have arrived by now, and wait
  texts.Cancel();
  LongTexts(daemon.stub(), 1).WaitEnded(1);  // waits behind them
  const auto count = [&](const std::string& outcome) {
    return daemon.Metric("ringfill_requests_total", "outcome=\"" + outcome + "\",rpc=\"Tokenize\"");
  };
  EXPECT_GE(count("cancelled"), 1);
  EXPECT_LT(count("ok"), kCalls / 2);
}

TEST(QueuedConversionTest, DoesNotHoldUpTheEnd) {
  constexpr int kCalls = 60;
  auto daemon = std::make_unique<TestDaemon>();
  const auto stub = TestDaemon::Connect(daemon->daemon().grpc_address());
  LongTexts texts(*stub, kCalls);
  const auto start = std::chrono::steady_clock::now();
  texts.WaitEnded(2);
  const auto two = std::chrono::steady_clock::now() - start;
  const auto end = std::chrono::steady_clock::now();
  daemon->Shutdown(std::chrono::seconds(0));
  EXPECT_LT(std::chrono::steady_clock::now() - end, two * (kCalls / 8) + std::chrono::seconds(1));
}

}  // namespace
}  // namespace ringfill
