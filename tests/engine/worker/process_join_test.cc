// Who may join a ring of processes, who is refused and why, and how they leave.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "engine/comm/tcp/connection.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/model/digest.h"
#include "engine/worker/control_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"
#include "tests/testing/fault_proxy.h"
#include "tests/testing/load_model.h"

namespace ringfill {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kSecret[] = "a secret that all of them know";

// What becomes of an engine of `ranks` whose workers are made so.
absl::Status StartStatus(const std::string& path, int ranks, const RosterOptions& roster) {
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  EngineOptions options = SmallOptions(ranks);
  const auto model = LoadModelOrDie(path);
  options.workers = ProcessFactory(model, roster, options.isa, worker_metrics);
  return Engine::Create(options, model, LoadTokenizerOrDie(*model), metrics).status();
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A free port; somebody else may take it before we do, which is unlikely.
std::string FreeAddress() { return Listener::Bind().value()->address(); }

RosterOptions Elsewhere(const std::string& path) {
  RosterOptions roster = RosterForTests(path);
  roster.start_workers = false;
  roster.secret = Secret::FromBytes(kSecret).value();
  roster.listen = FreeAddress();
  return roster;
}

std::unique_ptr<ChildProcess> StartWorker(const std::string& leader, int rank,
                                          const std::string& model, const std::string& secret,
                                          std::vector<std::string> more = {}) {
  std::vector<std::string> command = RosterForTests(model).command;
  for (std::string word :
       {std::string("--leader"), leader, std::string("--rank"), std::to_string(rank),
        std::string("--secret-fd"), std::string("3"), std::string("--model"), model}) {
    command.push_back(std::move(word));
  }
  command.insert(command.end(), more.begin(), more.end());
  return ChildProcess::Start(command, std::as_bytes(std::span(secret)), [] {}).value();
}

TEST(ProcessJoinTest, WhatDoesNotFitIsRefusedByName) {
  TinyModelOptions tiny;
  const std::string path = WriteTinyModel(tiny);
  tiny.seed = 2;
  const std::string other = WriteTinyModel(tiny);
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"--other-model", other, "model digest"},
      {"--version", "77",
       absl::StrCat("protocol version: the leader has ", kControlVersion, ", this worker 77")},
      {"--memory", "1000", "kv.memory_bytes: the leader wants"},
      {"--dtype", "bf16", "compute.dtype: the leader has f32, this worker bf16"}};
  for (const auto& [option, value, expected] : cases) {
    SCOPED_TRACE(option);
    RosterOptions roster = RosterForTests(path);
    roster.command.push_back(option);
    roster.command.push_back(value);
    const absl::Status status = StartStatus(path, 2, roster);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank "), HasSubstr(expected)));
  }
}

TEST(ProcessJoinTest, SaysWhyWorkersDidNotCome) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  RosterOptions roster = RosterForTests(path);
  roster.command = {"/bin/false"};
  EXPECT_THAT(Message(StartStatus(path, 2, roster)),
              AllOf(HasSubstr("exited with code 1 before it was ready"), HasSubstr("of 2")));
  roster.command = {"/no/such/program"};
  EXPECT_THAT(Message(StartStatus(path, 2, roster)), HasSubstr("cannot start /no/such/program"));
  roster.command = RosterForTests(path).command;
  roster.listen = "192.0.2.1:1";  // not ours
  EXPECT_THAT(Message(StartStatus(path, 2, roster)), HasSubstr("ring.listen"));
}

TEST(ProcessJoinTest, SaysWhoIsMissing) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  RosterOptions roster = Elsewhere(path);
  roster.join_timeout = std::chrono::seconds(3);
  const auto right = StartWorker(roster.listen, 1, path, kSecret, {"--rejoin", "yes"});
  const auto wrong =
      StartWorker(roster.listen, 0, path, "a secret that is another", {"--rejoin", "yes"});
  const absl::Status status = StartStatus(path, 2, roster);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("1 of 2 workers have joined"), HasSubstr("rank 0: nobody has called"),
                    HasSubstr("did not prove that they know the secret"),
                    HasSubstr("--leader " + roster.listen)));
}

// What the leader did is not taken for what happened to the worker.
TEST(ProcessJoinTest, AReplacementThatIsLateIsEndedAndCountsAsLate) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  const std::string flag = path + ".late";
  RosterOptions roster = RosterForTests(path);
  const std::string program = roster.command.front();
  roster.command = {"/bin/sh", "-c",
                    "[ -e " + flag + " ] && exec sleep 1000; exec " + program + " worker \"$@\"",
                    "sh"};
  roster.join_timeout = std::chrono::seconds(10);
  ProcessRing ring(path, SmallOptions(2), roster);
  const auto lost = [&](LossReason reason) {
    return ring.worker_metrics().lost[static_cast<size_t>(reason)]->Value();
  };
  std::ofstream(flag) << "from now on";
  kill(ring.Pids().at(1), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return lost(LossReason::kLate) == 1; }));
  EXPECT_EQ(lost(LossReason::kSignal), 1);
  std::filesystem::remove(flag);
  EXPECT_TRUE(AwaitRanks(ring, 2));
  EXPECT_EQ(LostTotal(ring), 2);
}

size_t ThreadsOf(pid_t pid) {
  const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(pid) + "/task"), end;
  return static_cast<size_t>(std::distance(tasks, end));
}

class AnotherMachineTest : public testing::TestWithParam<const char*> {};

// The leader's cores say nothing of another machine's, whatever the names of both.
TEST_P(AnotherMachineTest, AWorkerSettlesItsOwnThreads) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  RosterOptions roster = Elsewhere(path);
  const auto here = StartWorker(roster.listen, 0, path, kSecret, {"--rejoin", "yes"});
  const auto there =
      StartWorker(roster.listen, 1, path, kSecret, {"--rejoin", "yes", GetParam(), "another"});
  EngineOptions options = SmallOptions(2);
  options.threads = 0;
  ProcessRing ring(path, options, roster);
  const int cores = UsableCores();
  EXPECT_EQ(ThreadsOf(there->pid()) - ThreadsOf(here->pid()),
            static_cast<size_t>(cores - std::max(1, cores / 2)));
  const auto prompt = RandomPrompt(500, 384, 5);
  ExpectMatchesReference(ring.engine().model(), prompt, ring.runner().Run(Greedy(prompt, 3)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(By, AnotherMachineTest, testing::Values("--host", "--boot-id"));

// One worker, whose leader says what the test wants.
class LedWorkerTest : public testing::Test {
 protected:
  LedWorkerTest() : path_(WriteTinyModel(TinyModelOptions())) {
    const auto model = LoadModelOrDie(path_);
    const Secret secret = Secret::FromBytes(kSecret).value();
    Credentials credentials;
    credentials.secret = &secret;
    credentials.own.role = PeerRole::kLeader;
    credentials.peer_role = PeerRole::kWorker;
    worker_ = StartWorker(listener_->address(), 0, path_, kSecret);
    connection_ = std::make_unique<Connection>(listener_->Accept(credentials, HangLimit()).value());
    WelcomeMessage welcome;
    welcome.ranks = 2;
    welcome.model_digest = ModelDigest(model->file());
    welcome.page_tokens = 16;
    welcome.pages = 8;
    welcome.min_round_timeout_ms = welcome.heartbeat_timeout_ms = 10 * 60 * 1000;
    welcome.geometry = KvGeometryOf(model->config(), {.page_tokens = 16});
    EXPECT_TRUE(Send(welcome).ok());
  }

  static Instant HangLimit() { return Clock::Real().Now() + std::chrono::seconds(60); }
  absl::Status Send(const ControlMessage& message) {
    const EncodedControl encoded = EncodeControl(message);
    return connection_->Send(encoded.type, std::as_bytes(std::span(encoded.payload)), HangLimit());
  }
  // The next message of a kind; those of others before it are dropped.
  template <typename M>
  absl::StatusOr<M> Receive() {
    while (true) {
      RF_ASSIGN_OR_RETURN(const Connection::Message message, connection_->Receive(HangLimit()));
      RF_ASSIGN_OR_RETURN(const ControlMessage decoded,
                          DecodeControl(message.type, message.payload));
      if (const auto* wanted = std::get_if<M>(&decoded)) return *wanted;
    }
  }
  // A ring of two whose other rank is not there, and would be waited for longer than any test runs.
  FormMessage EndlessForm(uint64_t attempt) {
    FormMessage form;
    form.attempt = attempt;
    form.members = {listener_->address(), HostPortText(LocalAddress(nobody_).value())};
    form.timeout_ms = 10 * 60 * 1000;
    return form;
  }

  // Until the worker is busy with such an attempt.
  void AwaitForming() {
    EXPECT_TRUE(AwaitSocket(nobody_, POLLIN, HangLimit(), "a call of the worker").ok());
  }

  const std::string path_;
  const std::unique_ptr<Listener> listener_ = Listener::Bind().value();
  const Fd nobody_ = ListenTcp({"127.0.0.1", 0}).value();  // accepts nobody
  std::unique_ptr<ChildProcess> worker_;
  std::unique_ptr<Connection> connection_;
};

// A leader that says more than any rank can take while it is busy.
TEST_F(LedWorkerTest, AWorkerThatIsFloodedSaysSoAndGoes) {
  ASSERT_TRUE(Send(EndlessForm(1)).ok());
  for (int i = 0; i < 1000; ++i) Send(TraceMessage{true}).IgnoreError();
  const auto refused = Receive<RefusedMessage>();
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_THAT(refused->reason, HasSubstr("256 messages wait for this worker's rank"));
  EXPECT_TRUE(absl::IsUnavailable(Receive<RefusedMessage>().status()));
}

// The leader has given up the one before.
TEST_F(LedWorkerTest, AnAttemptIsLeftWhenTheNextComes) {
  ASSERT_TRUE(Send(EndlessForm(1)).ok());
  AwaitForming();
  ASSERT_TRUE(Send(EndlessForm(2)).ok());
  FormMessage alone = EndlessForm(3);
  alone.members.pop_back();
  ASSERT_TRUE(Send(alone).ok());
  for (uint64_t attempt = 1; attempt <= 3; ++attempt) {
    const auto formed = Receive<FormedMessage>();
    ASSERT_TRUE(formed.ok()) << formed.status();
    EXPECT_EQ(formed->attempt, attempt);
    EXPECT_EQ(formed->status.code(),
              attempt < 3 ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
    EXPECT_THAT(formed->missing, testing::IsEmpty());
  }
}

TEST_F(LedWorkerTest, AnAttemptIsLeftWhenTheLeaderGoes) {
  ASSERT_TRUE(Send(EndlessForm(1)).ok());
  AwaitForming();
  connection_->Close();
  const auto exit = worker_->AwaitExit(HangLimit());
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->Describe(), "exited with code 3");  // WorkerEnd::kLeaderGone
}

class ElsewhereTest : public testing::Test {
 protected:
  ElsewhereTest() : path_(WriteTinyModel(TinyModelOptions())), roster_(Elsewhere(path_)) {
    for (int rank = 0; rank < 2; ++rank) {
      workers_.push_back(StartWorker(roster_.listen, rank, path_, kSecret, {"--rejoin", "yes"}));
    }
    roster_.heartbeat_timeout = std::chrono::milliseconds(1500);
    ring_ = std::make_unique<ProcessRing>(path_, SmallOptions(2), roster_);
  }

  void ExpectServes() {
    const auto prompt = RandomPrompt(500, 384, 5);
    const Outcome outcome = ring_->runner().Run(Greedy(prompt, 3));
    ExpectMatchesReference(ring_->engine().model(), prompt, outcome, 1e-3);
  }

  const std::string path_;
  RosterOptions roster_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<ProcessRing> ring_;
};

TEST_F(ElsewhereTest, AStoppedWorkerThatGoesOnComesBack) {
  // It keeps its connections to the other rank, which learns from the leader alone.
  const auto prompt = RandomPrompt(6000, 384, 5);
  auto client = Client::Start(ring_->engine(), Greedy(prompt, 3));
  ASSERT_TRUE(client.ok());
  while (!std::holds_alternative<ProgressEvent>((*client)->Next())) {
  }
  workers_[1]->Kill(SIGSTOP);
  const Instant stopped = Clock::Real().Now();
  const Outcome outcome = (*client)->Finish();
  EXPECT_EQ(outcome.tokens.size(), 3u) << outcome.status;
  // Far less than ring.min_round_timeout_ms.
  EXPECT_LT(Seconds(Clock::Real().Now() - stopped), 15);
  EXPECT_TRUE(Eventually([&] {
    return ring_->worker_metrics().lost[static_cast<size_t>(LossReason::kSilent)]->Value() == 1;
  }));
  ExpectServes();
  EXPECT_EQ(ring_->engine().Status().ranks.size(), 1u);
  workers_[1]->Kill(SIGCONT);
  EXPECT_TRUE(Eventually([&] {
    ring_->runner().Run(Greedy({5, 6}, 1));
    return ring_->engine().Status().ranks.size() == 2;
  }));
  ExpectServes();
}

TEST_F(ElsewhereTest, WorkersGoHomeWithTheLeader) {
  ring_.reset();
  for (const auto& worker : workers_) {
    const auto exit = worker->AwaitExit(Clock::Real().Now() + std::chrono::seconds(20));
    ASSERT_TRUE(exit.has_value());
    EXPECT_EQ(exit->Describe(), "exited with code 0");
  }
}

TEST_F(ElsewhereTest, ASecondWorkerForARankIsTurnedAway) {
  const auto second = StartWorker(roster_.listen, 1, path_, kSecret);
  ASSERT_TRUE(second->AwaitExit(Clock::Real().Now() + std::chrono::seconds(20)).has_value());
  EXPECT_TRUE(second->exit()->number != 0 && !second->exit()->by_signal);
  const auto none = StartWorker(roster_.listen, 2, path_, kSecret);
  ASSERT_TRUE(none->AwaitExit(Clock::Real().Now() + std::chrono::seconds(20)).has_value());
  EXPECT_EQ(none->exit()->number, 2);  // WorkerEnd::kRefused
  ExpectServes();
  EXPECT_EQ(ring_->engine().Status().failed_steps, 0);
}

// Bytes that prove nothing, on many connections, while requests run.
TEST_F(ElsewhereTest, GarbageDisturbsNobody) {
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    std::mt19937 rng(3);
    const HostPort to = ParseHostPort(roster_.listen).value();
    std::vector<Fd> open;
    while (!stop) {
      auto socket = ConnectTcp(to, Clock::Real().Now() + std::chrono::seconds(1));
      if (!socket.ok()) continue;
      std::vector<std::byte> bytes(rng() % 300);
      for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
      const iovec part = {bytes.data(), bytes.size()};
      WriteSome(*socket, std::span(&part, 1)).IgnoreError();
      if (open.size() > 100) open.clear();
      open.push_back(*std::move(socket));
    }
  });
  for (int i = 0; i < 10; ++i) ExpectServes();
  stop = true;
  attacker.join();
  EXPECT_EQ(ring_->engine().Status().failed_steps, 0);
}

// Somebody who knows the secret and still talks nonsense.
TEST_F(ElsewhereTest, MessagesOutOfTurnEndTheirConnectionAlone) {
  const Secret secret = Secret::FromBytes(kSecret).value();
  Credentials credentials;
  credentials.secret = &secret;
  credentials.own.role = PeerRole::kWorker;
  credentials.peer_role = PeerRole::kLeader;
  const std::pair<uint16_t, std::string> messages[] = {
      {99, ""}, {1, "no join"}, {10, std::string(100, 'x')}, {4, ""}, {7, ""}};
  for (const auto& [type, payload] : messages) {
    SCOPED_TRACE(type);
    const Instant limit = Clock::Real().Now() + std::chrono::seconds(20);
    auto connection = Connection::Connect(roster_.listen, credentials, limit);
    ASSERT_TRUE(connection.ok()) << connection.status();
    EXPECT_TRUE((*connection)->Send(type, std::as_bytes(std::span(payload)), limit).ok());
    absl::Status status;
    while (status.ok()) status = (*connection)->Receive(limit).status();  // beats
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  ExpectServes();
  EXPECT_EQ(ring_->engine().Status().failed_steps, 0);
}

// A network that swallows everything without a word: both ends find out by themselves, and the
// worker comes back when it can.
TEST(BlackholeTest, BothEndsNoticeAndTheWorkerComesBack) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  RosterOptions roster = Elsewhere(path);
  roster.heartbeat_timeout = std::chrono::milliseconds(1500);
  const auto proxy = FaultProxy::Start(roster.listen);
  const auto near = StartWorker(roster.listen, 0, path, kSecret, {"--rejoin", "yes"});
  const auto far = StartWorker(proxy->address(), 1, path, kSecret, {"--rejoin", "yes"});
  ProcessRing ring(path, SmallOptions(2), roster);
  const auto prompt = RandomPrompt(3000, 384, 5);
  auto client = Client::Start(ring.engine(), Greedy(prompt, 3));
  ASSERT_TRUE(client.ok());
  const Instant cut = Clock::Real().Now();
  proxy->Set({.fault = Fault::kBlackhole});
  EXPECT_TRUE(Eventually([&] {
    return ring.worker_metrics().lost[static_cast<size_t>(LossReason::kSilent)]->Value() == 1;
  }));
  EXPECT_LT(Seconds(Clock::Real().Now() - cut), 2.5);
  const Outcome outcome = (*client)->Finish();
  ExpectMatchesReference(ring.engine().model(), prompt, outcome, 1e-3);
  proxy->Set({});
  EXPECT_TRUE(Eventually([&] {
    ring.runner().Run(Greedy({5, 6}, 1));
    return ring.engine().Status().ranks.size() == 2;
  }));
}

TEST(LeaderDeathTest, WorkersDoNotOutliveTheirLeader) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  const std::string program = RosterForTests(path).command.front();
  auto leader = ChildProcess::Start({program, "lead", "3", path}, {}, [] {}).value();
  ASSERT_TRUE(Eventually([&] { return WorkersOf(leader->pid(), path).size() == 3; }));
  leader->Kill(SIGKILL);
  ASSERT_TRUE(leader->AwaitExit(Clock::Real().Now() + std::chrono::seconds(20)).has_value());
  EXPECT_TRUE(Eventually([&] { return WorkersOf(0, path).empty(); }, std::chrono::seconds(20)));
}

}  // namespace
}  // namespace ringfill
