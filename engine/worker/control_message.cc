#include "engine/worker/control_message.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/schedule/byte_codec.h"
#include "engine/schedule/plan_codec.h"
#include "engine/worker/result_codec.h"

namespace ringfill {
namespace {

constexpr uint32_t kJoinMagic = 0x4a524652;  // "RFRJ"
constexpr size_t kDeviceNumbers = 11;
constexpr size_t kMaxFigures = kDeviceNumbers * kMaxMembers + 2 * kMaxMembers * kMaxMembers + 2;
constexpr int kMaxThreads = 1024;

constexpr const char* kNames[] = {"JOIN",    "WELCOME",  "REFUSED",  "READY",  "FORM",    "FORMED",
                                  "STEP",    "STOP",     "PROGRESS", "RESULT", "ABORT",   "TRACE",
                                  "MEASURE", "MEASURED", "BEAT",     "BYE",    "DEADLINK"};
static_assert(std::size(kNames) == std::variant_size_v<ControlMessage>);
// A worker of another build is refused when it joins, not at its first step.
static_assert(kControlVersion == 5 && kPlanVersion == 2 && kResultVersion == 2,
              "another form of plans or results is another kControlVersion too");

// One list of fields for both directions: Field writes or reads.
class Out {
 public:
  template <Scalar T>
  void Number(const T& value, const char*, T, T) {
    w.Put(value);
  }
  void Bool(const bool& value, const char*) { w.PutBool(value); }
  template <typename E>
  void Enum(const E& value, int, const char*) {
    w.PutEnum(value);
  }
  void Text(const std::string& text, const char*) {
    w.PutText(std::string_view(text).substr(0, kMaxControlText));
  }
  void Rest(const std::string& bytes) { rest = &bytes; }
  void Bytes(const Sha256Digest& digest, const char*) {
    for (const std::byte b : digest) w.Put(std::to_integer<uint8_t>(b));
  }
  void StatusOf(const absl::Status& status, const char*) { w.PutStatus(status, kMaxControlText); }
  template <typename T, typename Each>
  void List(const std::vector<T>& values, size_t most, const char*, const Each& each) {
    const size_t count = std::min(values.size(), most);
    w.PutCount(count);
    for (size_t i = 0; i < count; ++i) each(*this, values[i]);
  }
  void Numbers(const std::vector<double>& values, size_t, const char*) { w.PutAll(values); }
  std::string Take() {
    std::string bytes = w.Take();
    if (rest != nullptr) bytes.append(*rest);
    return bytes;
  }

 private:
  ByteWriter w;
  const std::string* rest = nullptr;
};

class In {
 public:
  explicit In(std::string_view bytes) : r(bytes), bytes_(bytes) {}

  template <Scalar T>
  void Number(T& value, const char* field, T min, T max) {
    value = r.Get<T>(field);
    if (r.ok() && (value < min || value > max)) {
      r.Fail(field, absl::StrCat("is ", value, ", outside ", min, " to ", max));
    }
  }
  void Bool(bool& value, const char* field) { value = r.GetBool(field); }
  template <typename E>
  void Enum(E& value, int count, const char* field) {
    value = r.GetEnum<E>(count, field);
  }
  void Text(std::string& text, const char* field) {
    text = r.GetText(field);
    if (text.size() > kMaxControlText) {
      r.Fail(field, absl::StrCat("has ", text.size(), " bytes, at most ", kMaxControlText));
      text.clear();
    }
  }
  void Rest(std::string& bytes) {
    if (!r.ok()) return;
    bytes.assign(bytes_.substr(bytes_.size() - r.left()));
    r = ByteReader("");
  }
  void Bytes(Sha256Digest& digest, const char* field) {
    for (std::byte& b : digest) b = std::byte{r.Get<uint8_t>(field)};
  }
  void StatusOf(absl::Status& status, const char* field) {
    status = r.GetStatus(kMaxControlText, field);
  }
  template <typename T, typename Each>
  void List(std::vector<T>& values, size_t most, const char* field, const Each& each) {
    const size_t count = r.GetCount(sizeof(uint32_t), field);
    if (count > most) return r.Fail(field, absl::StrCat("has ", count, ", at most ", most));
    values.resize(count);
    for (T& value : values) each(*this, value);
  }
  void Numbers(std::vector<double>& values, size_t most, const char* field) {
    r.GetAll(field, values);
    if (values.size() > most) {
      r.Fail(field, absl::StrCat("has ", values.size(), " numbers, at most ", most));
      values.clear();
    }
  }
  void Skip() {
    if (r.ok()) r = ByteReader("");
  }
  absl::Status Finish() { return r.Finish(); }

 private:
  ByteReader r;
  const std::string_view bytes_;
};

constexpr int64_t kMost64 = int64_t{1} << 50;
constexpr int64_t kMostMs = int64_t{1} << 40;
constexpr uint64_t kAny64 = ~uint64_t{0};

template <typename C, typename G>
void GeometryFields(C& c, G& g) {
  // block_bytes is a size_t, the rest are ints.
  c.Number(g.layers, "geometry layers", 0, 1 << 20);
  c.Number(g.kv_heads, "geometry heads", 0, 1 << 20);
  c.Number(g.page_tokens, "geometry page tokens", 0, 1 << 20);
  c.Number(g.block_bytes, "geometry block bytes", size_t{0}, size_t{1} << 40);
}

template <typename C, typename M>
void Fields(C& c, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, JoinMessage>) {
    c.Number(m.rank, "rank", 0, kMaxMembers - 1);
    c.Bytes(m.model_digest, "model digest");
    c.Text(m.model_name, "model name");
    c.Enum(m.dtype, 3, "compute type");
    c.Enum(m.kv_dtype, 3, "KV type");
    c.Enum(m.best_isa, kCpuIsas, "instruction set");
    c.Text(m.data_address, "data address");
    c.Text(m.host, "host");
    c.Text(m.boot_id, "boot id");
    c.Number(m.pid, "pid", int64_t{0}, kMost64);
    c.Number(m.gpu.device, "GPU", -1, kMaxGpus - 1);
    c.Text(m.gpu.name, "GPU name");
    c.Text(m.gpu.place, "GPU place");
    c.Number(m.gpu.free_bytes, "free bytes of the GPU", int64_t{0}, kMost64);
  } else if constexpr (std::is_same_v<T, WelcomeMessage>) {
    c.Number(m.rank, "rank", 0, kMaxMembers - 1);
    c.Number(m.ranks, "ranks", 1, kMaxMembers);
    c.Number(m.cluster, "cluster", uint64_t{0}, kAny64);
    c.Bytes(m.model_digest, "model digest");
    c.Enum(m.device, kRankDevices, "device");
    c.Enum(m.dtype, kDTypes, "compute type");
    c.Enum(m.kv_dtype, kDTypes, "KV type");
    c.Enum(m.isa, kCpuIsas, "instruction set");
    c.Bool(m.strict, "strict");
    c.Number(m.page_tokens, "page tokens", 16, 1 << 20);
    c.Number(m.pages, "pages", int64_t{0}, int64_t{1} << 31);
    c.Number(m.threads, "threads", 0, kMaxThreads);
    c.Number(m.spin_rounds, "spin rounds", 0, 1 << 30);
    c.Number(m.expanded_weight_bytes, "expanded weight bytes", int64_t{0}, kMost64);
    c.Number(m.gather_bytes, "gather bytes", int64_t{0}, kMost64);
    c.Number(m.chunk_tokens, "chunk tokens", int64_t{1}, int64_t{1} << 31);
    c.Number(m.min_round_timeout_ms, "round timeout", int64_t{1}, kMostMs);
    c.Number(m.heartbeat_timeout_ms, "heartbeat timeout", int64_t{1}, kMostMs);
    GeometryFields(c, m.geometry);
  } else if constexpr (std::is_same_v<T, RefusedMessage>) {
    c.Bool(m.try_again, "try again");
    c.Text(m.reason, "reason");
  } else if constexpr (std::is_same_v<T, ReadyMessage>) {
    c.Number(m.threads, "threads", 1, kMaxThreads);
    c.Number(m.cores, "cores", 1, 1 << 20);
  } else if constexpr (std::is_same_v<T, FormMessage>) {
    c.Number(m.epoch, "epoch", uint64_t{0}, kAny64);
    c.Number(m.attempt, "attempt", uint64_t{0}, kAny64);
    c.Number(m.rank, "rank", 0, kMaxMembers - 1);
    c.List(m.members, kMaxMembers, "members", [](C& each, auto& at) { each.Text(at, "member"); });
    c.Number(m.timeout_ms, "timeout", int64_t{0}, kMostMs);
    c.Bool(m.trace, "trace");
    c.Text(m.group_id, "group id");
  } else if constexpr (std::is_same_v<T, FormedMessage>) {
    c.Number(m.attempt, "attempt", uint64_t{0}, kAny64);
    c.StatusOf(m.status, "status");
    c.List(m.missing, kMaxMembers, "missing",
           [](C& each, auto& rank) { each.Number(rank, "missing rank", 0, kMaxMembers - 1); });
  } else if constexpr (std::is_same_v<T, StepMessage>) {
    c.Rest(m.plan);
  } else if constexpr (std::is_same_v<T, StopMessage>) {
    c.Number(m.epoch, "epoch", uint64_t{0}, kAny64);
    c.Number(m.step, "step", uint64_t{0}, kAny64);
    c.Number(m.chunks, "chunks", uint64_t{0}, kAny64);
  } else if constexpr (std::is_same_v<T, ProgressMessage>) {
    c.Number(m.epoch, "epoch", uint64_t{0}, kAny64);
    c.Number(m.step, "step", uint64_t{0}, kAny64);
    c.Number(m.layers, "layers", 0, 1 << 20);
  } else if constexpr (std::is_same_v<T, ResultMessage>) {
    c.Number(m.epoch, "epoch", uint64_t{0}, kAny64);
    c.Number(m.step, "step", uint64_t{0}, kAny64);
    c.Rest(m.result);
  } else if constexpr (std::is_same_v<T, AbortMessage>) {
    c.Number(m.epoch, "epoch", uint64_t{0}, kAny64);
    c.StatusOf(m.status, "status");
  } else if constexpr (std::is_same_v<T, TraceMessage>) {
    c.Bool(m.on, "on");
  } else if constexpr (std::is_same_v<T, MeasureMessage>) {
    c.Number(m.question, "question", uint64_t{0}, kAny64);
    c.Number(m.timeout_ms, "timeout", int64_t{0}, kMostMs);
  } else if constexpr (std::is_same_v<T, MeasuredMessage>) {
    c.Number(m.question, "question", uint64_t{0}, kAny64);
    c.StatusOf(m.status, "status");
    c.Numbers(m.figures, kMaxFigures, "figures");
  } else if constexpr (std::is_same_v<T, BeatMessage>) {
    c.Number(m.sent_ns, "time", std::numeric_limits<int64_t>::min(),
             std::numeric_limits<int64_t>::max());
  } else if constexpr (std::is_same_v<T, ByeMessage>) {
    c.Text(m.reason, "reason");
  } else {
    static_assert(std::is_same_v<T, DeadLinkMessage>);
    c.Number(m.attempt, "attempt", uint64_t{0}, kAny64);
    c.Number(m.peer, "peer", 0, kMaxMembers - 1);
  }
}

absl::Status CheckMessage(const FormMessage& m) {
  if (m.members.empty() || static_cast<size_t>(m.rank) >= m.members.size()) {
    return absl::DataLossError("rank is not one of the members");
  }
  if (!m.group_id.empty() && m.group_id.size() != kGroupIdBytes) {
    return absl::DataLossError(absl::StrCat("group id has ", m.group_id.size(),
                                            " bytes; it must have none or ", kGroupIdBytes));
  }
  return absl::OkStatus();
}
absl::Status CheckMessage(const WelcomeMessage& m) {
  if (m.rank >= m.ranks) return absl::DataLossError("rank is not below ranks");
  if (m.device == RankDevice::kCuda && m.strict) {
    return absl::DataLossError("strict is there on the CPU alone");
  }
  return absl::OkStatus();
}
absl::Status CheckMessage(const AbortMessage& m) {
  return m.status.ok() ? absl::DataLossError("status is OK") : absl::OkStatus();
}
template <typename M>
absl::Status CheckMessage(const M&) {
  return absl::OkStatus();
}

template <typename M>
absl::StatusOr<ControlMessage> DecodeAs(std::string_view bytes) {
  In in(bytes);
  M message;
  if constexpr (std::is_same_v<M, JoinMessage>) {
    uint32_t magic = 0;
    in.Number(magic, "magic", kJoinMagic, kJoinMagic);
    in.Number(message.version, "version", uint32_t{0}, ~uint32_t{0});
    if (message.version != kControlVersion) {
      in.Skip();
    } else {
      Fields(in, message);
    }
  } else {
    Fields(in, message);
  }
  RF_RETURN_IF_ERROR(in.Finish());
  RF_RETURN_IF_ERROR(CheckMessage(message));
  return message;
}

template <size_t I = 0>
absl::StatusOr<ControlMessage> DecodeIndex(size_t index, std::string_view bytes) {
  if constexpr (I < std::variant_size_v<ControlMessage>) {
    if (index == I) return DecodeAs<std::variant_alternative_t<I, ControlMessage>>(bytes);
    return DecodeIndex<I + 1>(index, bytes);
  }
  return absl::DataLossError("is none that is known");
}

std::string_view WantedName(WantedDType wanted) {
  return wanted == WantedDType::kF32 ? "f32" : "bf16";
}

bool Meets(WantedDType wanted, DType have) {
  return wanted == WantedDType::kAny || WantedName(wanted) == DTypeName(have);
}

std::string Differ(std::string_view what, std::string_view leader, std::string_view worker) {
  return absl::StrCat(std::string(what), ": the leader has ", std::string(leader), ", this worker ",
                      std::string(worker));
}

}  // namespace

EncodedControl EncodeControl(const ControlMessage& message) {
  Out out;
  std::visit(
      [&out](const auto& m) {
        if constexpr (std::is_same_v<std::decay_t<decltype(m)>, JoinMessage>) {
          out.Number(kJoinMagic, "magic", kJoinMagic, kJoinMagic);
          out.Number(m.version, "version", uint32_t{0}, ~uint32_t{0});
        }
        Fields(out, m);
      },
      message);
  return {static_cast<uint16_t>(message.index() + 1), out.Take()};
}

absl::StatusOr<ControlMessage> DecodeControl(uint16_t type, std::span<const std::byte> payload) {
  const std::string_view bytes(reinterpret_cast<const char*>(payload.data()), payload.size());
  absl::StatusOr<ControlMessage> message =
      DecodeIndex(static_cast<size_t>(type) - 1, type == 0 ? std::string_view() : bytes);
  if (message.ok()) return message;
  return absl::DataLossError(absl::StrCat(ControlName(type), ": ", message.status().message()));
}

std::string ControlName(uint16_t type) {
  if (type >= 1 && type <= std::size(kNames)) return kNames[type - 1];
  return absl::StrCat("message ", type);
}

std::vector<double> FiguresToNumbers(const Figures& figures) {
  std::vector<double> out;
  for (const DeviceFigures& d : figures.devices) {
    out.insert(
        out.end(),
        {d.product_flops_per_s, d.expand_weights_per_s, static_cast<double>(d.product_row_granule),
         static_cast<double>(d.large_tile.rows), d.large_tile.flops_per_s,
         static_cast<double>(d.small_tile.rows), d.small_tile.flops_per_s, d.token_bytes_per_s,
         d.token_flops_per_s, d.copy_bytes_per_s, d.op_overhead_s});
  }
  for (const LinkFigures& link : figures.links) {
    out.insert(out.end(), {link.latency_s, link.bytes_per_s});
  }
  out.insert(out.end(), {figures.gather.latency_s, figures.gather.bytes_per_s});
  return out;
}

absl::StatusOr<Figures> FiguresFromNumbers(const std::vector<double>& numbers, int ranks) {
  const auto n = static_cast<size_t>(ranks);
  if (numbers.size() != kDeviceNumbers * n + 2 * n * n + 2) {
    return absl::DataLossError(
        absl::StrCat(numbers.size(), " figures are not those of ", ranks, " ranks"));
  }
  constexpr double kMost = 1e30;
  for (const double number : numbers) {
    if (!(number >= 0 && number <= kMost)) {
      return absl::DataLossError(absl::StrCat("the figure ", number, " is out of range"));
    }
  }
  auto next = [at = numbers.begin()]() mutable { return *at++; };
  auto rows = [&next] { return std::max<int64_t>(1, static_cast<int64_t>(std::min(next(), 1e9))); };
  Figures figures;
  figures.devices.resize(n);
  figures.links.resize(n * n);
  for (DeviceFigures& d : figures.devices) {
    d.product_flops_per_s = next();
    d.expand_weights_per_s = next();
    d.product_row_granule = rows();
    d.large_tile.rows = rows();
    d.large_tile.flops_per_s = next();
    d.small_tile.rows = rows();
    d.small_tile.flops_per_s = next();
    d.token_bytes_per_s = next();
    d.token_flops_per_s = next();
    d.copy_bytes_per_s = next();
    d.op_overhead_s = next();
  }
  for (LinkFigures& link : figures.links) {
    link.latency_s = next();
    link.bytes_per_s = next();
  }
  figures.gather.latency_s = next();
  figures.gather.bytes_per_s = next();
  return figures;
}

std::string GeometryMismatch(const KvGeometry& leader, const KvGeometry& worker) {
  const std::pair<const char*, std::pair<size_t, size_t>> fields[] = {
      {"layers", {static_cast<size_t>(leader.layers), static_cast<size_t>(worker.layers)}},
      {"KV heads", {static_cast<size_t>(leader.kv_heads), static_cast<size_t>(worker.kv_heads)}},
      {"kv.page_tokens",
       {static_cast<size_t>(leader.page_tokens), static_cast<size_t>(worker.page_tokens)}},
      {"bytes of a KV block", {leader.block_bytes, worker.block_bytes}}};
  for (const auto& [what, values] : fields) {
    if (values.first != values.second) {
      return Differ(what, absl::StrCat(values.first), absl::StrCat(values.second));
    }
  }
  return "";
}

std::string JoinMismatch(const WelcomeMessage& leader, const JoinMessage& worker) {
  if (worker.version != kControlVersion) {
    return Differ("protocol version", absl::StrCat(kControlVersion), absl::StrCat(worker.version)) +
           "; run the same release on both";
  }
  if (worker.model_digest != leader.model_digest) {
    return Differ("model digest", ToHex(std::span(leader.model_digest).first(8)),
                  absl::StrCat(ToHex(std::span(worker.model_digest).first(8)), " (",
                               worker.model_name, ")")) +
           "; give both the same file";
  }
  if (!Meets(worker.dtype, leader.dtype)) {
    return Differ("compute.dtype", DTypeName(leader.dtype), WantedName(worker.dtype));
  }
  if (!Meets(worker.kv_dtype, leader.kv_dtype)) {
    return Differ("kv.dtype", DTypeName(leader.kv_dtype), WantedName(worker.kv_dtype));
  }
  if (leader.device == RankDevice::kCuda && worker.gpu.device < 0) {
    return absl::StrCat("ranks.backend: the leader's ranks compute on GPUs, this worker has none: ",
                        worker.gpu.name);
  }
  if (leader.device == RankDevice::kCpu && worker.best_isa < leader.isa) {
    return Differ("compute.isa", CpuIsaName(leader.isa), CpuIsaName(worker.best_isa)) +
           " at best; set compute.isa of the leader to what all have";
  }
  return "";
}

}  // namespace ringfill
