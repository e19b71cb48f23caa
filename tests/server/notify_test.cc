// What a service manager hears: over real sockets, from a real engine and from the program itself.
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/app/service_manager.h"
#include "server/app/service_reporter.h"
#include "tests/server/eventually.h"
#include "tests/server/notify_socket.h"
#include "tests/server/ringfilld.h"
#include "tests/server/test_daemon.h"
#include "tests/testing/engine_runner.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Longer than the half second after which an idle leader looks for work.
constexpr double kStalledS = 1.5;
constexpr Duration kWatchdog = milliseconds(400);  // so a sign of life each 100 ms
constexpr Duration kSilence = milliseconds(500);

int Signs(const std::vector<std::string>& messages) {
  return static_cast<int>(std::count_if(messages.begin(), messages.end(),
                                        [](const auto& m) { return HasLine(m, "WATCHDOG=1"); }));
}

// Reads until nothing that says WATCHDOG=1 has come for a while.
bool SignsStop(NotifySocket& socket) {
  return Eventually([&] { return Signs(socket.Within(kSilence)) == 0; });
}

TEST(ServiceManagerTest, SpeaksToPathsAndAbstractNames) {
  for (const std::string& name : {NotifySocket::NewPath(), NotifySocket::NewAbstractName()}) {
    NotifySocket socket(name);
    const ServiceManager manager(name);
    EXPECT_TRUE(manager.Notify("READY=1\nSTATUS=here")) << name;
    EXPECT_EQ(socket.Next(kHangLimit), "READY=1\nSTATUS=here");
    EXPECT_TRUE(manager.NotifyStatus("two\nlines"));
    EXPECT_EQ(socket.Next(kHangLimit), "STATUS=two lines");
  }
}

TEST(ServiceManagerTest, BadSocketsDoNoHarm) {
  SetLogLevel(LogLevel::kError);
  const std::string file = testing::TempDir() + "no-socket";
  std::ofstream(file) << "x";
  for (const std::string& name :
       {std::string("/nonexistent/socket"), file, std::string("@nobody-listens-here"),
        std::string("relative/path"), std::string("vsock:2:1"), std::string("/"), std::string("@"),
        "/" + std::string(500, 'x'), "@" + std::string(500, 'x')}) {
    const ServiceManager manager(name);
    EXPECT_TRUE(manager.present());
    EXPECT_FALSE(manager.Notify("READY=1")) << name;
    EXPECT_FALSE(manager.NotifyStatus("again")) << name;
  }
  EXPECT_FALSE(ServiceManager("").present());
  EXPECT_FALSE(ServiceManager("").Notify("READY=1"));
}

TEST(ServiceManagerTest, AManagerThatDoesNotReadCannotHoldItUp) {
  SetLogLevel(LogLevel::kError);
  NotifySocket socket(NotifySocket::NewAbstractName());
  const ServiceManager manager(socket.name());
  constexpr int kMoreThanFits = 10000;
  const Instant start = Clock::Real().Now();
  int sent = 0;
  while (sent < kMoreThanFits && manager.Notify("WATCHDOG=1")) ++sent;
  EXPECT_LT(sent, kMoreThanFits);
  EXPECT_LT(Clock::Real().Now() - start, seconds(30));
}

TEST(ServiceManagerTest, ReadsAndRemovesTheEnvironment) {
  struct Case {
    std::string usec, pid;
    std::optional<Duration> watchdog;
  };
  const std::string self = std::to_string(getpid());
  for (const Case& c : {Case{"3000000", "", seconds(3)}, Case{"3000000", self, seconds(3)},
                        Case{"3000000", "1", std::nullopt}, Case{"3000000", "x", std::nullopt},
                        Case{"", self, std::nullopt}, Case{"0", self, std::nullopt},
                        Case{"-5", self, std::nullopt}, Case{"soon", self, std::nullopt}}) {
    setenv("NOTIFY_SOCKET", "@a-manager", 1);
    setenv("WATCHDOG_USEC", c.usec.c_str(), 1);
    setenv("WATCHDOG_PID", c.pid.c_str(), 1);
    const ServiceManager manager = ServiceManager::FromEnvironment();
    EXPECT_TRUE(manager.present());
    EXPECT_EQ(manager.watchdog(), c.watchdog) << c.usec << " for " << c.pid;
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
      EXPECT_EQ(getenv(name), nullptr) << name;
    }
  }
  EXPECT_FALSE(ServiceManager::FromEnvironment().present());
}

class ReporterTest : public testing::Test {
 protected:
  ReporterTest() : model_(WriteTinyModel(TinyModelOptions())) {
    SetLogLevel(LogLevel::kError);
    options_.ranks = 2;
    options_.dtype = DType::kF32;
    options_.threads = 2;
    options_.kv_memory_bytes = 1 << 20;
    options_.chunk_tokens = 64;
  }

  void Start() {
    runner_ = std::make_unique<EngineRunner>(model_, options_);
    reporter_ = std::make_unique<ServiceReporter>(
        manager_, ReportedService{.name = "tiny",
                                  .status = [this] { return runner_->engine().Status(); },
                                  .stalled_s = kStalledS});
  }

  static Request Short() {
    Request request;
    request.prompt = {1, 2, 3};
    request.stop.max_tokens = 2;
    return request;
  }

  const std::string model_;
  EngineOptions options_;
  NotifySocket socket_{NotifySocket::NewAbstractName()};
  ServiceManager manager_{socket_.name(), kWatchdog};
  std::unique_ptr<EngineRunner> runner_;
  std::unique_ptr<ServiceReporter> reporter_;
};

TEST_F(ReporterTest, IsReadyAndAliveWithoutWork) {
  Start();
  EXPECT_EQ(socket_.Next(kHangLimit), "READY=1");
  EXPECT_THAT(socket_.Next(kHangLimit),
              AllOf(StartsWith("WATCHDOG=1\n"), HasSubstr("STATUS=serving tiny: 0 running")));
  // Beyond what counts as a hang.
  const int early = Signs(socket_.Within(FromSeconds(kStalledS + 0.5)));
  const int late = Signs(socket_.Within(seconds(1)));
  EXPECT_GE(early, 3);
  EXPECT_GE(late, 2);
  EXPECT_LE(early + late, 31);
}

TEST_F(ReporterTest, SaysNothingOfAWatchdogThatNobodyKeeps) {
  const ServiceManager without(socket_.name());
  runner_ = std::make_unique<EngineRunner>(model_, options_);
  const ServiceReporter reporter(
      without, ReportedService{.name = "tiny",
                               .status = [this] { return runner_->engine().Status(); },
                               .stalled_s = kStalledS});
  EXPECT_TRUE(socket_.AwaitLine("READY=1"));
  EXPECT_EQ(Signs(socket_.Within(seconds(3))), 0);
}

TEST_F(ReporterTest, SignsOfLifeStopWithAStepThatHangs) {
  std::atomic<bool> hang = false;
  options_.fault = [&](int rank, uint64_t) {
    while (rank == 0 && hang) poll(nullptr, 0, 5);
    return absl::OkStatus();
  };
  Start();
  EXPECT_TRUE(runner_->Run(Short()).status.ok());
  EXPECT_TRUE(socket_.AwaitLine("WATCHDOG=1"));
  hang = true;
  auto client = Client::Start(runner_->engine(), Short());
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE(socket_.AwaitLine("STATUS=hangs: no progress with 1 running"));
  EXPECT_TRUE(SignsStop(socket_));
  reporter_->Draining();
  EXPECT_EQ(socket_.Next(kHangLimit), "STOPPING=1");
  for (const std::string& message : socket_.Within(kSilence)) {
    EXPECT_FALSE(HasLine(message, "EXTEND_TIMEOUT_USEC")) << message;
  }
  hang = false;
  EXPECT_TRUE(socket_.AwaitLine("WATCHDOG=1"));
  EXPECT_TRUE((*client)->Finish().status.ok());
}

// Workers whose leader hangs in them while there is nothing to do.
class StuckWhenIdle : public Workers {
 public:
  StuckWhenIdle(std::unique_ptr<Workers> real, const std::atomic<bool>& stuck)
      : real_(std::move(real)), stuck_(stuck) {}
  int ranks() const override { return real_->ranks(); }
  std::vector<RankStepResult> Run(const StepPlan& plan, const StepControl& control) override {
    return real_->Run(plan, control);
  }
  absl::StatusOr<std::vector<int>> Reform(uint64_t epoch,
                                          const std::function<bool()>& while_waiting) override {
    return real_->Reform(epoch, while_waiting);
  }
  bool WantsReform() override {
    while (stuck_) poll(nullptr, 0, 5);
    return real_->WantsReform();
  }
  absl::StatusOr<Figures> Measure(const ModelShape& shape) override {
    return real_->Measure(shape);
  }
  void Trace(bool on) override { real_->Trace(on); }

 private:
  const std::unique_ptr<Workers> real_;
  const std::atomic<bool>& stuck_;
};

TEST_F(ReporterTest, SignsOfLifeStopWithAnIdleLeaderThatHangs) {
  std::atomic<bool> stuck = false;
  const WorkersFactory threads =
      EngineRunner::ThreadsWith(*Model::Load(model_), options_, [](ThreadWorkersOptions&) {});
  options_.workers = [&](const WorkersSpec& spec,
                         const EngineInfo& info) -> absl::StatusOr<std::unique_ptr<Workers>> {
    RF_ASSIGN_OR_RETURN(std::unique_ptr<Workers> real, threads(spec, info));
    return std::make_unique<StuckWhenIdle>(std::move(real), stuck);
  };
  Start();
  EXPECT_TRUE(socket_.AwaitLine("WATCHDOG=1"));
  stuck = true;
  EXPECT_TRUE(socket_.AwaitLine("STATUS=hangs: no progress with 0 running"));
  EXPECT_TRUE(SignsStop(socket_));
  stuck = false;
  EXPECT_TRUE(socket_.AwaitLine("WATCHDOG=1"));
}

TEST_F(ReporterTest, AsksForTimeWhileItDrains) {
  Start();
  EXPECT_TRUE(socket_.AwaitLine("READY=1"));
  reporter_->Draining();
  EXPECT_TRUE(socket_.AwaitLine("STOPPING=1"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(socket_.AwaitLine("EXTEND_TIMEOUT_USEC=20000000"));
  }
  reporter_.reset();
  socket_.Within(milliseconds(1));
  EXPECT_TRUE(socket_.Within(kSilence).empty());
}

std::string Under(const NotifySocket& socket) {
  return "export WATCHDOG_USEC=400000 NOTIFY_SOCKET=" + socket.name();
}

TEST(NotifyProgramTest, TellsOfItsWholeLife) {
  NotifySocket socket(NotifySocket::NewPath());
  Ringfilld daemon({"ring.transport=processes"}, Under(socket));  // its workers say nothing
  EXPECT_THAT(socket.Next(kHangLimit), StartsWith("STATUS=loading /"));
  EXPECT_EQ(socket.Next(kHangLimit), "STATUS=starting 2 ranks");
  EXPECT_EQ(socket.Next(kHangLimit), "READY=1");
  EXPECT_THAT(daemon.ready(), StartsWith("ready grpc="));
  EXPECT_THAT(socket.Next(kHangLimit),
              AllOf(StartsWith("WATCHDOG=1\nSTATUS=serving "), HasSubstr(daemon.grpc_address())));
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(10), 2)).status.ok());
  EXPECT_TRUE(socket.AwaitLine("WATCHDOG=1"));
  daemon.process().Signal(SIGHUP);
  EXPECT_TRUE(socket.AwaitLine("RELOADING=1"));
  EXPECT_TRUE(socket.AwaitLine("READY=1"));
  daemon.process().Signal(SIGTERM);
  EXPECT_TRUE(socket.AwaitLine("STOPPING=1"));
  EXPECT_TRUE(socket.AwaitLine("EXTEND_TIMEOUT_USEC="));
  EXPECT_EQ(daemon.process().Wait(), 0);
}

TEST(NotifyProgramTest, IsNotReadyBeforeItsRanksAre) {
  const std::string secret = testing::TempDir() + "notify.secret";
  std::ofstream(secret) << "0123456789abcdef0123456789abcdef";
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  NotifySocket socket(NotifySocket::NewPath());
  Subprocess daemon(ServeCommand({"ring.transport=processes", "ring.start_workers=false",
                                  "ring.secret_file=" + secret, "ring.join_timeout_s=300"},
                                 Under(socket)));
  EXPECT_TRUE(socket.AwaitLine("STATUS=starting 2 ranks"));
  EXPECT_TRUE(socket.Within(seconds(1)).empty());
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(NotifyProgramTest, SaysWhyItDoesNotStart) {
  NotifySocket socket(NotifySocket::NewPath());
  const Exit exit = RunRingfilld({"--set", "model.path=/nonexistent.gguf"}, Under(socket));
  EXPECT_EQ(exit.code, 3);
  EXPECT_EQ(socket.Next(kHangLimit), "STATUS=loading /nonexistent.gguf");
  EXPECT_THAT(socket.Next(kHangLimit), StartsWith("STATUS=the model cannot be loaded: /nonexis"));
}

TEST(NotifyProgramTest, RunsOnWithoutAManagerToTell) {
  Ringfilld daemon({}, "export WATCHDOG_USEC=400000 NOTIFY_SOCKET=/nonexistent/socket");
  EXPECT_TRUE(Generate(daemon.stub(), GenerateOf(TokenPrompt(10), 2)).status.ok());
  daemon.process().Signal(SIGTERM);
  EXPECT_EQ(daemon.process().Wait(), 0);
  const std::string errors = daemon.process().Errors();
  const std::string says = "the service manager cannot be told";
  ASSERT_THAT(errors, HasSubstr(says));
  EXPECT_EQ(errors.find(says), errors.rfind(says)) << "told once";
}

}  // namespace
}  // namespace ringfill
