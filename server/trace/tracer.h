// Who gets the engine's traces: a file that grows while the daemon runs (trace.path), and one
// client at a time that asked for some seconds (the Trace RPC). While neither wants any, nothing is
// recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/trace_json.h"

namespace ringfill {

// The engine's side of it, all thread-safe.
struct TraceSource {
  std::function<void(bool)> set_tracing;
  std::function<bool()> busy;       // a step may be under way
  std::function<RankSpans()> take;  // what was recorded since the last call
  std::function<std::vector<RequestSpan>()> take_requests = {};  // likewise; may be empty
  // The phases in which requests are at a time; may be empty.
  std::function<std::vector<RequestSpan>(Instant)> open_requests = {};
  std::function<int64_t()> dropped;  // spans that it could not keep, since start
};

struct Recording {
  RankSpans ranks;
  std::vector<RequestSpan> requests;
  double seconds = 0;
  int64_t spans = 0;
  int64_t dropped = 0;
};

// Thread-safe. Does its work in Poll, which someone calls every few tenths of a second.
class Tracer {
 public:
  // Spans kept for a client.
  static constexpr int64_t kMaxRecordedSpans = int64_t{1} << 19;
  static constexpr size_t kMaxRecordedRequests = size_t{1} << 16;
  static constexpr Duration kPatience = std::chrono::seconds(60);
  static constexpr Duration kProgressPeriod = std::chrono::milliseconds(500);

  // Called from Poll, without the tracer's lock.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnProgress(double elapsed_s, int64_t spans) = 0;
    virtual void OnRecorded(Recording recording) = 0;
    // It has had the recording for longer than `take_limit` and still exists.
    virtual void OnOverdue() = 0;
  };

  // `file`: null for none.
  Tracer(TraceSource source, const Clock& clock, std::unique_ptr<TraceFile> file,
         Duration take_limit);

  // Records for `listener` from the next step on; past `duration`, waits at most kPatience for the
  // first step to end while the engine is busy. RESOURCE_EXHAUSTED while the listener of an
  // earlier recording exists. One that ceases to exist ends its recording.
  absl::Status Record(Duration duration, const std::shared_ptr<Listener>& listener);
  void Poll();
  // Writes what is left to the file and closes it. No Poll after it.
  void Close();

 private:
  // What Poll has to say, and to whom.
  enum class Notice { kNone, kProgress, kRecorded, kOverdue };

  void TakeSpans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteFile(const RankSpans& ranks, const std::vector<RequestSpan>& requests)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(RankSpans ranks, std::vector<RequestSpan> requests)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Notice Advance(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRecording() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TraceSource source_;
  const Clock& clock_;
  const Duration take_limit_;

  Mutex mutex_;
  std::unique_ptr<TraceFile> file_ ABSL_GUARDED_BY(mutex_);
  std::weak_ptr<Listener> listener_ ABSL_GUARDED_BY(mutex_);
  bool recording_ ABSL_GUARDED_BY(mutex_) = false;
  Recording kept_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_before_ ABSL_GUARDED_BY(mutex_) = 0;
  Instant begun_ ABSL_GUARDED_BY(mutex_);
  Instant until_ ABSL_GUARDED_BY(mutex_);
  Instant ended_ ABSL_GUARDED_BY(mutex_);
  Instant told_ ABSL_GUARDED_BY(mutex_);  // the last progress
  bool overdue_told_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ringfill
