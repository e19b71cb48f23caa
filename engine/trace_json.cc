#include "engine/trace_json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/output_file.h"
#include "nlohmann/json.hpp"

namespace ringfill {
namespace {

constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr std::string_view kNoSpans = "[\n]\n";
constexpr std::string_view kTraceBegin = "[\n";
constexpr std::string_view kEnd = "\n]\n";
constexpr int kRequestsProcess = 1 << 20;  // beyond those of ranks

// Viewers give process and thread 0 a meaning of their own, and the main thread is the one whose
// number is its process's.
int ProcessId(int rank) { return rank + 1; }
int ThreadId(int rank, TraceLane lane) { return kTraceLanes * rank + static_cast<int>(lane) + 1; }

const char* LaneName(TraceLane lane) {
  constexpr const char* kNames[kTraceLanes] = {"compute", "communication", "memory"};
  return kNames[static_cast<size_t>(lane)];
}

// Operations that belong to one way for ranks to meet each other's KV.
bool HasStrategy(OpKind kind) {
  switch (kind) {
    case OpKind::kCopyKv:
    case OpKind::kStoreKv:
    case OpKind::kHeader:
    case OpKind::kAttend:
    case OpKind::kMerge:
    case OpKind::kExchange:
    case OpKind::kAllGather:
      return true;
    default:
      return false;
  }
}

void AppendMicroseconds(Duration time, std::string& out) {
  const int64_t ns = std::chrono::nanoseconds(time).count();
  absl::StrAppendFormat(&out, "%s%d.%03d", ns < 0 ? "-" : "", std::abs(ns) / 1000,
                        std::abs(ns) % 1000);
}

const char* PhaseName(RequestPhase phase) {
  switch (phase) {
    case RequestPhase::kQueue:
      return "queue";
    case RequestPhase::kPrefill:
      return "prefill";
    case RequestPhase::kDecode:
      return "decode";
  }
  return "";
}

// As a JSON string.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// A device, an empty file, or one that begins as traces do: what else is there, such as the model,
// is not written over.
bool MayBeTrace(int fd, mode_t mode) {
  if (!S_ISREG(mode)) return S_ISCHR(mode);
  char first[kTraceBegin.size()];
  const ssize_t read = pread(fd, first, sizeof(first), 0);
  return read == 0 || (read == static_cast<ssize_t>(sizeof(first)) &&
                       std::string_view(first, sizeof(first)) == kTraceBegin);
}

absl::string_view Piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

std::optional<Instant> FirstBegin(const RankSpans& ranks,
                                  const std::vector<RequestSpan>& requests) {
  std::optional<Instant> first;
  for (const RequestSpan& span : requests) first = std::min(first.value_or(span.begin), span.begin);
  for (const std::vector<TraceSpan>& spans : ranks) {
    for (const TraceSpan& span : spans) first = std::min(first.value_or(span.begin), span.begin);
  }
  return first;
}

void TraceJson::BeginEvent(std::string& out) {
  out += empty_ ? "[\n" : ",\n";
  empty_ = false;
}

void TraceJson::Append(int rank, const TraceSpan& span, std::string& out) {
  const auto r = static_cast<size_t>(rank);
  if (r >= named_.size()) named_.resize(r + 1);
  if (!named_[r]) {
    named_[r] = true;
    const auto name = [&](const char* kind, int thread, const std::string& args) {
      BeginEvent(out);
      absl::StrAppend(&out, "{\"name\":\"", kind, "\",\"ph\":\"M\",\"pid\":", ProcessId(rank),
                      ",\"tid\":", thread, ",\"args\":{", args, "}}");
    };
    const int first = ThreadId(rank, TraceLane::kCompute);
    name("process_name", first, absl::StrCat("\"name\":\"rank ", rank, "\""));
    name("process_sort_index", first, absl::StrCat("\"sort_index\":", rank));
    for (const TraceLane lane : {TraceLane::kCompute, TraceLane::kComm, TraceLane::kMemory}) {
      const int thread = ThreadId(rank, lane);
      name("thread_name", thread, absl::StrCat("\"name\":\"", LaneName(lane), "\""));
      name("thread_sort_index", thread, absl::StrCat("\"sort_index\":", static_cast<int>(lane)));
    }
  }
  const OpLabel& label = span.label;
  BeginEvent(out);
  absl::StrAppend(&out, "{\"name\":\"", Piece(OpKindName(label.kind)), "\",\"cat\":\"",
                  LaneName(span.lane), "\",\"ph\":\"X\",\"pid\":", ProcessId(rank),
                  ",\"tid\":", ThreadId(rank, span.lane), ",\"ts\":");
  AppendMicroseconds(span.begin - zero_, out);
  out += ",\"dur\":";
  AppendMicroseconds(std::max(Duration::zero(), span.end - span.begin), out);
  out += ",\"args\":{";
  const size_t args = out.size();
  const auto arg = [&](const char* name, const auto& value) {
    absl::StrAppend(&out, out.size() == args ? "\"" : ",\"", name, "\":", value);
  };
  if (label.layer >= 0) arg("layer", label.layer);
  if (label.round >= 0) arg("round", label.round);
  if (label.bytes > 0) arg("bytes", label.bytes);
  if (HasStrategy(label.kind)) {
    arg("strategy", absl::StrCat("\"", Piece(RingStrategyName(label.strategy)), "\""));
  }
  out += "}}";
}

void TraceJson::Append(const RequestSpan& span, std::string& out) {
  if (!requests_named_) {
    requests_named_ = true;
    BeginEvent(out);
    absl::StrAppend(&out, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":", kRequestsProcess,
                    ",\"tid\":", kRequestsProcess, ",\"args\":{\"name\":\"requests\"}}");
  }
  const std::string id = Quoted(span.request_id);
  const auto event = [&](char kind, Instant at) {
    BeginEvent(out);
    absl::StrAppend(&out, "{\"name\":\"", PhaseName(span.phase), "\",\"cat\":\"request\",\"ph\":\"",
                    std::string(1, kind), "\",\"id\":", id, ",\"pid\":", kRequestsProcess,
                    ",\"tid\":", kRequestsProcess, ",\"ts\":");
    AppendMicroseconds(at - zero_, out);
  };
  event('b', span.begin);
  absl::StrAppend(&out, ",\"args\":{\"request_id\":", id, ",\"tokens\":", span.tokens);
  if (span.open) out += ",\"unfinished\":true";
  if (!span.traceparent.empty()) {
    absl::StrAppend(&out, ",\"traceparent\":", Quoted(span.traceparent));
  }
  out += "}}";
  event('e', std::max(span.begin, span.end));
  out += "}";
}

void TraceJson::End(std::string& out) { out += empty_ ? kNoSpans : kEnd; }

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& path,
                                                             int64_t max_spans) {
  const auto refused = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  };
  // For this user alone, since it names requests. O_NONBLOCK: a named pipe that nobody reads is an
  // error, and no wait for a reader.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return refused();
  std::unique_ptr<TraceFile> file(new TraceFile(path, fd, max_spans));
  struct stat info;
  if (fstat(fd, &info) != 0) return refused();
  if (!MayBeTrace(fd, info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is there and is no trace"));
  }
  if (S_ISREG(info.st_mode) && (fchmod(fd, S_IRUSR | S_IWUSR) != 0 || ftruncate(fd, 0) != 0)) {
    return refused();
  }
  std::string nothing;
  if (const absl::Status written = file->Write(nothing); !written.ok()) {
    return absl::InvalidArgumentError(written.message());
  }
  return file;
}

TraceFile::~TraceFile() { close(fd_); }

absl::Status TraceFile::Append(const RankSpans& ranks, const std::vector<RequestSpan>& requests) {
  if (!json_) {
    const std::optional<Instant> first = FirstBegin(ranks, requests);
    if (!first) return absl::OkStatus();
    json_.emplace(*first);
  }
  std::string text;
  if (!full()) {
    for (const RequestSpan& span : requests) json_->Append(span, text);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const TraceSpan& span : ranks[r]) {
      if (full()) {
        ++dropped_;
        continue;
      }
      json_->Append(static_cast<int>(r), span, text);
      ++spans_;
      if (text.size() >= kWriteBytes) RF_RETURN_IF_ERROR(Write(text));
    }
  }
  return Write(text);
}

bool TraceFile::WriteAtEnd(std::string_view text) {
  return lseek(fd_, static_cast<off_t>(end_), SEEK_SET) >= 0 && WriteAll(fd_, text);
}

// `text` and the end of the array, over the end that is there; clears it.
absl::Status TraceFile::Write(std::string& text) {
  const auto events = static_cast<int64_t>(text.size());
  if (events == 0 && end_ > 0) return absl::OkStatus();
  text += end_ + events == 0 ? kNoSpans : kEnd;
  if (!WriteAtEnd(text)) {
    const int error = errno;
    // The end that was there before had room.
    if (ftruncate(fd_, static_cast<off_t>(end_)) == 0) {
      (void)WriteAtEnd(end_ == 0 ? kNoSpans : kEnd);
    }
    return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(error)));
  }
  end_ += events;
  text.clear();
  return absl::OkStatus();
}

}  // namespace ringfill
