#include "server/trace/tracer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/request/retry.h"

namespace ringfill {

Tracer::Tracer(TraceSource source, const Clock& clock, std::unique_ptr<TraceFile> file,
               Duration take_limit)
    : source_(std::move(source)), clock_(clock), take_limit_(take_limit), file_(std::move(file)) {
  if (file_ != nullptr) source_.set_tracing(true);
}

absl::Status Tracer::Record(Duration duration, const std::shared_ptr<Listener>& listener) {
  MutexLock lock(&mutex_);
  if (!listener_.expired()) {
    return WithRetryAfter(absl::ResourceExhaustedError("another trace is being recorded or read"),
                          kRetrySoon);
  }
  TakeSpans();  // what was there before is not part of it
  listener_ = listener;
  recording_ = true;
  kept_ = Recording();
  dropped_before_ = source_.dropped();
  begun_ = told_ = clock_.Now();
  until_ = begun_ + duration;
  overdue_told_ = false;
  source_.set_tracing(true);
  return absl::OkStatus();
}

void Tracer::Poll() {
  std::shared_ptr<Listener> listener;
  Notice notice = Notice::kNone;
  Recording recording;
  double elapsed_s = 0;
  int64_t spans = 0;
  {
    MutexLock lock(&mutex_);
    const Instant now = clock_.Now();
    TakeSpans();
    listener = listener_.lock();
    if (listener == nullptr) {
      if (recording_) EndRecording();
      return;
    }
    notice = Advance(now);
    elapsed_s = Seconds(now - begun_);
    spans = kept_.spans;
    if (notice == Notice::kRecorded) {
      recording = std::exchange(kept_, {});
      recording.seconds = elapsed_s;
    }
  }
  switch (notice) {
    case Notice::kNone:
      return;
    case Notice::kProgress:
      return listener->OnProgress(elapsed_s, spans);
    case Notice::kRecorded:
      return listener->OnRecorded(std::move(recording));
    case Notice::kOverdue:
      return listener->OnOverdue();
  }
}

Tracer::Notice Tracer::Advance(Instant now) {
  if (!recording_) {
    if (overdue_told_ || now - ended_ < take_limit_) return Notice::kNone;
    overdue_told_ = true;
    return Notice::kOverdue;
  }
  const bool early = kept_.spans == 0 && now < until_ + kPatience && source_.busy();
  if (now >= until_ && !early) {
    ended_ = now;
    if (source_.open_requests) Keep({}, source_.open_requests(now));
    kept_.dropped += source_.dropped() - dropped_before_;
    EndRecording();
    return Notice::kRecorded;
  }
  if (now - told_ < kProgressPeriod) return Notice::kNone;
  told_ = now;
  return Notice::kProgress;
}

void Tracer::EndRecording() {
  recording_ = false;
  if (file_ == nullptr) source_.set_tracing(false);
}

void Tracer::TakeSpans() {
  RankSpans ranks = source_.take();
  std::vector<RequestSpan> requests;
  if (source_.take_requests) requests = source_.take_requests();
  if (file_ != nullptr) WriteFile(ranks, requests);
  if (recording_) Keep(std::move(ranks), std::move(requests));
}

void Tracer::WriteFile(const RankSpans& ranks, const std::vector<RequestSpan>& requests) {
  const absl::Status written = file_->Append(ranks, requests);
  if (written.ok() && !file_->full()) return;
  if (written.ok()) {
    Log(LogLevel::kInfo, "the trace file is complete: it holds trace.max_spans operations",
        {{"path", file_->path()}, {"spans", file_->spans()}});
  } else {
    Log(LogLevel::kError, "tracing to the file ends", {{"status", written.ToString()}});
  }
  file_.reset();
  if (!recording_) source_.set_tracing(false);
}

void Tracer::Keep(RankSpans ranks, std::vector<RequestSpan> requests) {
  for (RequestSpan& span : requests) {
    if (kept_.requests.size() >= kMaxRecordedRequests) {
      ++kept_.dropped;
      continue;
    }
    span.begin = std::max(span.begin, begun_);  // what was before would be most of the picture
    kept_.requests.push_back(std::move(span));
  }
  kept_.ranks.resize(std::max(kept_.ranks.size(), ranks.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<TraceSpan>& spans = ranks[r];
    const auto count = static_cast<int64_t>(spans.size());
    const int64_t fits = std::min(count, kMaxRecordedSpans - kept_.spans);
    kept_.ranks[r].insert(kept_.ranks[r].end(), spans.begin(), spans.begin() + fits);
    kept_.spans += fits;
    kept_.dropped += count - fits;
  }
}

void Tracer::Close() {
  MutexLock lock(&mutex_);
  TakeSpans();
  file_.reset();
}

}  // namespace ringfill
