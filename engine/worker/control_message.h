// What leader and worker say to each other on their connection: JOIN, WELCOME, READY, then FORM and
// STEP again and again. Little-endian, bounded; the decoder takes bytes from outside.
//
//   worker                    leader
//   JOIN      ->                        who I am, which model, which types I insist on
//             <-   WELCOME | REFUSED    what the ring computes with
//   READY | REFUSED  ->                 what it computes with, when that suits it
//             <-   FORM                 members of an epoch's ring
//   FORMED    ->
//             <-   STEP                 with STOP and ABORT while it runs
//   PROGRESS, RESULT  ->
//   DEADLINK  ->                        at any time: nothing comes from another rank any more
//
// BEAT goes both ways all the time, BYE ends the connection from either side.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/compute/cpu_isa.h"
#include "engine/compute/dtype.h"
#include "engine/cost/figures.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// Of these messages and of what they carry: STEP's plan and RESULT's result, which have versions of
// their own (control_message.cc holds them together).
inline constexpr uint32_t kControlVersion = 5;
inline constexpr size_t kMaxControlText = 4096;      // of a reason; longer ones are cut
inline constexpr size_t kMaxControlBytes = 1 << 17;  // of all but STEP and RESULT
inline constexpr int kMaxMembers = 64;
inline constexpr int kMaxGpus = 1024;         // of a machine
inline constexpr size_t kGroupIdBytes = 128;  // of an id that NCCL makes for a group

// What a worker may insist on; by default it takes what the leader has.
enum class WantedDType : uint8_t { kAny, kF32, kBF16 };

// What the ranks of a ring compute on.
enum class RankDevice : uint8_t { kCpu, kCuda };
inline constexpr int kRankDevices = 2;

// The GPU of a worker, in case its leader wants one.
struct WorkerGpu {
  int32_t device = -1;     // CUDA's number of it in the worker's process; -1: none
  std::string name = {};   // "device 0 (NVIDIA H100, sm_90)"; of none: why
  std::string place = {};  // on the bus of its machine
  int64_t free_bytes = 0;  // before anything of the rank is there
};

struct JoinMessage {
  uint32_t version = kControlVersion;  // another one: nothing else is read
  int32_t rank = 0;                    // wished for
  Sha256Digest model_digest{};
  std::string model_name;
  WantedDType dtype = WantedDType::kAny;
  WantedDType kv_dtype = WantedDType::kAny;
  CpuIsa best_isa = CpuIsa::kBaseline;
  std::string data_address;  // where its end of the ring listens
  std::string host;
  std::string boot_id;  // of its kernel (BootId)
  int64_t pid = 0;
  WorkerGpu gpu;
};

// All that makes ranks alike, and this rank's share.
struct WelcomeMessage {
  int32_t rank = 0;
  int32_t ranks = 1;
  uint64_t cluster = 0;
  Sha256Digest model_digest{};
  RankDevice device = RankDevice::kCpu;
  DType dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  CpuIsa isa = CpuIsa::kBaseline;
  bool strict = false;
  int32_t page_tokens = 0;
  int64_t pages = 0;
  int32_t threads = 1;  // 0: for the worker's machine to say
  int32_t spin_rounds = 0;
  int64_t expanded_weight_bytes = 0;
  int64_t gather_bytes = 0;
  int64_t chunk_tokens = 1;  // prompt tokens of a step, over all ranks
  int64_t min_round_timeout_ms = 0;
  int64_t heartbeat_timeout_ms = 0;
  KvGeometry geometry;
};

struct RefusedMessage {
  bool try_again = false;  // it may pass: the rank is taken, say
  std::string reason;
};

struct ReadyMessage {
  int32_t threads = 1;
  int32_t cores = 1;  // that its process may use
};

struct FormMessage {
  uint64_t epoch = 0;
  uint64_t attempt = 0;  // no two rings of a cluster have the same
  int32_t rank = 0;
  std::vector<std::string> members;  // [ranks] data addresses
  int64_t timeout_ms = 0;
  bool trace = false;
  std::string group_id =
      {};  // NCCL's, of this attempt alone; empty: they connect by their addresses
};

struct FormedMessage {
  uint64_t attempt = 0;
  absl::Status status;
  std::vector<int32_t> missing;  // ranks it has no connection with, or failed at for good
};

struct StepMessage {
  std::string plan;  // EncodePlan
};

// Of the step that runs.
struct StopMessage {
  uint64_t epoch = 0, step = 0;
  uint64_t chunks = 0;  // bit c: work on chunk c should stop
};

struct ProgressMessage {
  uint64_t epoch = 0, step = 0;
  int32_t layers = 0;
};

struct ResultMessage {
  uint64_t epoch = 0, step = 0;
  std::string result;  // EncodeResult
};

// The ring of the epoch is broken: stop waiting for each other.
struct AbortMessage {
  uint64_t epoch = 0;
  absl::Status status;
};

struct TraceMessage {
  bool on = false;
};

// All ranks measure together.
struct MeasureMessage {
  uint64_t question = 0;
  int64_t timeout_ms = 0;
};

struct MeasuredMessage {
  uint64_t question = 0;
  absl::Status status;
  std::vector<double> figures;  // FiguresToNumbers; from rank 0 alone
};

struct BeatMessage {
  int64_t sent_ns = 0;  // on the sender's monotonic clock
};

struct ByeMessage {
  std::string reason;
};

// Of the ring that the attempt formed.
struct DeadLinkMessage {
  uint64_t attempt = 0;
  int32_t peer = 0;  // its rank there
};

// In the order of their numbers on the wire, which start at 1.
using ControlMessage =
    std::variant<JoinMessage, WelcomeMessage, RefusedMessage, ReadyMessage, FormMessage,
                 FormedMessage, StepMessage, StopMessage, ProgressMessage, ResultMessage,
                 AbortMessage, TraceMessage, MeasureMessage, MeasuredMessage, BeatMessage,
                 ByeMessage, DeadLinkMessage>;

struct EncodedControl {
  uint16_t type = 0;
  std::string payload;
};
EncodedControl EncodeControl(const ControlMessage& message);
// DATA_LOSS naming the message and the field when the bytes are no such message.
absl::StatusOr<ControlMessage> DecodeControl(uint16_t type, std::span<const std::byte> payload);

// "STEP"; "message 99" for what is none.
std::string ControlName(uint16_t type);

// A rank's figures in a row of numbers. Back: DATA_LOSS unless they are of so many ranks, and
// none negative or beyond reason.
std::vector<double> FiguresToNumbers(const Figures& figures);
absl::StatusOr<Figures> FiguresFromNumbers(const std::vector<double>& numbers, int ranks);

// Why two ends do not fit, naming what differs and both values; empty when they do.
std::string GeometryMismatch(const KvGeometry& leader, const KvGeometry& worker);
// What of a worker's wishes the leader does not meet; empty when it meets all.
std::string JoinMismatch(const WelcomeMessage& leader, const JoinMessage& worker);

}  // namespace ringfill
