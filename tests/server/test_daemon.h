// A daemon on a random tiny model inside the test's process, with a client.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "ringfill/v1/ringfill.grpc.pb.h"
#include "server/app/daemon.h"
#include "tests/server/eventually.h"
#include "tests/server/sockets.h"

namespace ringfill {

inline constexpr int kTinyContext = 16384;

// The path of a tiny model with kTinyContext tokens of context; written once a process.
const std::string& TinyModelPath();

// Two ranks, f32, free ports, the tiny model; then `settings` (key=value). Settled.
Config TestConfig(const std::vector<std::string>& settings = {});

class TestDaemon {
 public:
  // Aborts when it cannot start.
  explicit TestDaemon(const std::vector<std::string>& settings = {});

  Daemon& daemon() { return *daemon_; }
  v1::Ringfill::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  // A connection of its own to any address.
  static std::unique_ptr<v1::Ringfill::Stub> Connect(const std::string& address);

  v1::GetStatusResponse Status();
  // By GetStatus, over all ranks.
  uint64_t PagesUsed();
  // The sum of all series whose line starts with `series`: "ringfill_kv_pages" with
  // `{...state="used"}` chosen by `holds`.
  double Metric(const std::string& series, const std::string& holds = "");
  // Waits until nothing runs and no page is in use, by GetStatus and by the metric.
  bool BecomesIdle();
  // Ends the daemon's life early.
  void Shutdown(Duration grace);

 private:
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Ringfill::Stub> stub_;
};

// `tokens` ids of the tiny vocabulary that differ by `seed`.
v1::Prompt TokenPrompt(int tokens, int seed = 0);
// Greedy, without a stop before `max_tokens`.
v1::GenerateRequest GenerateOf(v1::Prompt prompt, int max_tokens);

// Everything that a Generate call gave.
struct Generated {
  grpc::Status status;
  std::vector<v1::GenerateEvent> events;
  std::vector<uint32_t> tokens;
};
Generated Generate(v1::Ringfill::Stub& stub, const v1::GenerateRequest& request);

// The retry_delay of a status's google.rpc.RetryInfo, in seconds; nothing when it has none.
std::optional<double> RetryDelay(const grpc::Status& status);

// grpc.health.v1.Health/Check: "SERVING", "NOT_SERVING" or the name of the failed status's code.
std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service);
// What the reflection service lists, as the raw answer.
std::string ReflectedServices(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace ringfill
