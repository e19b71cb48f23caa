#include "tests/server/test_daemon.h"

#include <chrono>
#include <cstdlib>
#include <sstream>

#include "base/check.h"
#include "base/log.h"
#include "google/protobuf/duration.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "ringfill/v1/error_details.pb.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The next completion, which must be ok.
bool Next(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

std::chrono::system_clock::time_point HangDeadline() {
  return std::chrono::system_clock::now() + kHangLimit;
}

// A connection of its own, with the smallest windows: what a client does not read stays with the
// daemon.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Protobuf by hand: one field of bytes shorter than 128.
std::string StringField(int number, const std::string& value) {
  std::string out;
  out += static_cast<char>(number << 3 | 2);
  out += static_cast<char>(value.size());
  return out + value;
}

}  // namespace

const std::string& TinyModelPath() {
  static const std::string* const path = [] {
    TinyModelOptions options;
    options.context_length = kTinyContext;
    return new std::string(WriteTinyModel(options));
  }();
  return *path;
}

Config TestConfig(const std::vector<std::string>& settings) {
  Config config = DefaultConfig();
  std::vector<std::string> all = {
      "server.listen=127.0.0.1:0", "metrics.listen=127.0.0.1:0", "ranks.count=2",
      "compute.dtype=f32",         "log.level=warning",          "model.path=" + TinyModelPath()};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) RF_CHECK(ApplySetting(setting, config).ok());
  RF_CHECK(SettleConfig(config).ok());
  return config;
}

TestDaemon::TestDaemon(const std::vector<std::string>& settings) {
  SetLogLevel(LogLevel::kError);
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(TestConfig(settings));
  RF_CHECK(daemon.ok());
  daemon_ = *std::move(daemon);
  channel_ = ConnectTo(daemon_->grpc_address());
  stub_ = v1::Ringfill::NewStub(channel_);
}

std::unique_ptr<v1::Ringfill::Stub> TestDaemon::Connect(const std::string& address) {
  return v1::Ringfill::NewStub(ConnectTo(address));
}

v1::GetStatusResponse TestDaemon::Status() {
  grpc::ClientContext context;
  context.set_deadline(HangDeadline());
  v1::GetStatusResponse response;
  RF_CHECK(stub_->GetStatus(&context, {}, &response).ok());
  return response;
}

uint64_t TestDaemon::PagesUsed() {
  uint64_t pages = 0;
  const v1::GetStatusResponse status = Status();
  for (const v1::RankStatus& rank : status.ranks()) pages += rank.kv_pages_used();
  return pages;
}

double TestDaemon::Metric(const std::string& series, const std::string& holds) {
  std::istringstream body(HttpGet(daemon_->metrics_address(), "/metrics"));
  double sum = 0;
  bool found = false;
  for (std::string line; std::getline(body, line);) {
    if (!line.starts_with(series + "{") && !line.starts_with(series + " ")) continue;
    if (line.find(holds) == std::string::npos) continue;
    sum += std::atof(line.c_str() + line.rfind(' '));
    found = true;
  }
  RF_CHECK(found);
  return sum;
}

bool TestDaemon::BecomesIdle() {
  return Eventually([this] {
    const v1::GetStatusResponse status = Status();
    return status.running() == 0 && status.queued() == 0 && PagesUsed() == 0 &&
           Metric("ringfill_kv_pages", "state=\"used\"") == 0 &&
           Metric("ringfill_open_streams") == 0;
  });
}

void TestDaemon::Shutdown(Duration grace) {
  daemon_->Shutdown(grace, [] { return false; });
}

v1::Prompt TokenPrompt(int tokens, int seed) {
  constexpr int kSomeIds = 300;
  v1::Prompt prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    prompt.mutable_token_ids()->add_ids(10 + (i * 7 + seed * 31 + i * i) % kSomeIds);
  }
  return prompt;
}

v1::GenerateRequest GenerateOf(v1::Prompt prompt, int max_tokens) {
  v1::GenerateRequest request;
  *request.mutable_prompt() = std::move(prompt);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

Generated Generate(v1::Ringfill::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(HangDeadline());
  Generated out;
  const auto reader = stub.Generate(&context, request);
  for (v1::GenerateEvent event; reader->Read(&event);) {
    if (event.has_token()) out.tokens.push_back(event.token().token_id());
    out.events.push_back(event);
  }
  out.status = reader->Finish();
  return out;
}

std::optional<double> RetryDelay(const grpc::Status& status) {
  v1::StatusDetails details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.type_url() != "type.googleapis.com/google.rpc.RetryInfo") continue;
    // RetryInfo { Duration retry_delay = 1 }: an Any has the same first field, as bytes.
    google::protobuf::Any info;
    google::protobuf::Duration delay;
    RF_CHECK(info.ParseFromString(detail.value()) && delay.ParseFromString(info.type_url()));
    return static_cast<double>(delay.seconds()) + 1e-9 * delay.nanos();
  }
  return std::nullopt;
}

std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(HangDeadline());
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          ToBuffer(StringField(1, service)), &queue);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  if (!Next(queue)) return "no answer";
  if (!status.ok()) return std::to_string(status.error_code());
  const std::string bytes = ToString(answer);
  if (bytes == "\x08\x01") return "SERVING";
  return bytes == "\x08\x02" ? "NOT_SERVING" : "unknown";
}

std::string ReflectedServices(const std::shared_ptr<grpc::Channel>& channel) {
  constexpr int kListServices = 7;
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(HangDeadline());
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  grpc::ByteBuffer answer;
  call->StartCall(nullptr);
  if (!Next(queue)) return "";
  call->Write(ToBuffer(StringField(kListServices, "*")), nullptr);
  if (!Next(queue)) return "";
  call->Read(&answer, nullptr);
  if (!Next(queue)) return "";
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  Next(queue);
  return ToString(answer);
}

}  // namespace ringfill
