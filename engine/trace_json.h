// What the ranks did, as JSON that ui.perfetto.dev and chrome://tracing show: each rank is a
// process with three threads, "compute", "communication" and "memory".
//
// Requests are one more process, with a row for each in which its phases follow each other.
//
// Format: "Trace Event Format" of the Chromium project, the array form with complete events (ph X),
// of requests nestable asynchronous ones (ph b and e). Times are microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/request/request_span.h"
#include "engine/stream/trace.h"

namespace ringfill {

// [ranks] the spans of each.
using RankSpans = std::vector<std::vector<TraceSpan>>;

// When the first span began; nothing when there is none.
std::optional<Instant> FirstBegin(const RankSpans& ranks,
                                  const std::vector<RequestSpan>& requests = {});

// The text of one trace, piece by piece. Not thread-safe.
class TraceJson {
 public:
  // `zero`: when time starts.
  explicit TraceJson(Instant zero) : zero_(zero) {}

  // What follows the pieces so far: the span, and before a rank's first one the names of its lanes.
  void Append(int rank, const TraceSpan& span, std::string& out);
  // What follows: a phase of a request.
  void Append(const RequestSpan& span, std::string& out);
  // Closes the array. Nothing may follow.
  void End(std::string& out);

 private:
  void BeginEvent(std::string& out);

  const Instant zero_;
  bool empty_ = true;
  std::vector<bool> named_;  // by rank
  bool requests_named_ = false;
};

// A trace that is written while the daemon runs, up to a number of spans. Whenever Append returns,
// the file is whole. Not thread-safe.
class TraceFile {
 public:
  // Overwrites a trace that is there. INVALID_ARGUMENT with the path when there is another file, or
  // it cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path,
                                                           int64_t max_spans);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // UNAVAILABLE with the path when the file cannot be written (a full disk).
  // Phases of requests do not count among the spans.
  absl::Status Append(const RankSpans& ranks, const std::vector<RequestSpan>& requests = {});

  const std::string& path() const { return path_; }
  bool full() const { return spans_ >= max_spans_; }
  int64_t spans() const { return spans_; }
  // Spans of Append that did not fit.
  int64_t dropped() const { return dropped_; }

 private:
  TraceFile(std::string path, int fd, int64_t max_spans)
      : path_(std::move(path)), fd_(fd), max_spans_(max_spans) {}
  absl::Status Write(std::string& text);
  bool WriteAtEnd(std::string_view text);

  const std::string path_;
  const int fd_;
  const int64_t max_spans_;
  int64_t spans_ = 0;
  int64_t dropped_ = 0;
  int64_t end_ = 0;  // where the next event goes: before the end of the array
  std::optional<TraceJson> json_;
};

}  // namespace ringfill
