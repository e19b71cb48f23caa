#include "engine/worker/control_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

// A peer that is alive but does not read: far longer than the largest plan takes on a slow network.
constexpr Duration kSendLimit = std::chrono::minutes(10);
// Smaller messages are sent by the caller's thread while the line is free: one thread switch less a
// step.
constexpr size_t kInlineBytes = 32 << 10;

int64_t NowNs() { return std::chrono::nanoseconds(Clock::Real().Now().time_since_epoch()).count(); }

}  // namespace

ControlLink::ControlLink(std::unique_ptr<Connection> connection, Duration silence_limit,
                         Handler handler, const Clock& clock)
    : connection_(std::move(connection)),
      handler_(std::move(handler)),
      clock_(clock),
      silence_limit_(silence_limit) {}

ControlLink::~ControlLink() {
  {
    MutexLock lock(&mutex_);
    while (reader_.joinable() && ended_.ok() && finishing_.has_value()) changed_.Wait(&mutex_);
  }
  Close(absl::CancelledError("the link was closed"));
  if (reader_.joinable()) reader_.join();
  if (sender_.joinable()) sender_.join();
}

void ControlLink::Start() {
  const Instant now = clock_.Now();
  silence_ = Silence(now);
  look_due_ = now + LookPeriod();
  reader_ = std::thread([this] { ReadLoop(); });
  sender_ = std::thread([this] { SendLoop(); });
}

void ControlLink::Send(const ControlMessage& message) {
  Send(std::make_shared<EncodedControl>(EncodeControl(message)));
}

void ControlLink::Send(std::shared_ptr<const EncodedControl> message) {
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok() || finishing_.has_value()) return;
    if (sending_ || rest_ || !queue_.empty() || message->payload.size() > kInlineBytes) {
      queued_bytes_ += message->payload.size();
      queue_.push_back(std::move(message));
      changed_.SignalAll();
      const bool fits =
          queue_.size() <= kMaxQueued && (queued_bytes_ <= kMaxQueuedBytes || queue_.size() == 1);
      if (fits) return;
      ended_ = absl::ResourceExhaustedError(absl::StrCat(
          "the peer does not read: ", queue_.size(), " messages wait, ", queued_bytes_, " bytes"));
      connection_->Close();
      return;
    }
    sending_ = true;
  }
  Sent(connection_->SendSome(message->type, std::as_bytes(std::span(message->payload))));
}

void ControlLink::Sent(const absl::StatusOr<bool>& whole) {
  MutexLock lock(&mutex_);
  sending_ = false;
  rest_ = whole.ok() && !*whole;
  // When the peer has closed the connection the reader may still find its last words.
  if (!whole.ok() && !absl::IsUnavailable(whole.status()) && ended_.ok()) {
    ended_ = whole.status();
    connection_->Close();
  }
  changed_.SignalAll();
}

void ControlLink::Finish(const ControlMessage& last, const absl::Status& why, Duration patience) {
  RF_CHECK(!why.ok());
  Send(last);
  MutexLock lock(&mutex_);
  if (!finishing_.has_value()) finishing_ = {why, Clock::Real().Now() + patience};
  changed_.SignalAll();
}

void ControlLink::Close(const absl::Status& why) {
  RF_CHECK(!why.ok());
  MutexLock lock(&mutex_);
  if (ended_.ok()) ended_ = finishing_.has_value() ? finishing_->why : why;
  connection_->Close();
  changed_.SignalAll();
}

void ControlLink::SendLoop() {
  while (true) {
    std::shared_ptr<const EncodedControl> message;
    bool rest;
    {
      MutexLock lock(&mutex_);
      Instant beat = Clock::Real().Now() + kBeatPeriod;
      while (ended_.ok() && (sending_ || (queue_.empty() && !rest_))) {
        if (finishing_.has_value() && !sending_) return connection_->EndSending();
        if (const Instant now = Clock::Real().Now(); now >= beat) {
          if (!sending_) break;
          beat = now + kBeatPeriod;  // bytes are on their way as it is
        }
        changed_.WaitUntil(&mutex_, beat);
      }
      if (!ended_.ok()) return;
      sending_ = true;
      rest = rest_;
      if (!rest && !queue_.empty()) {
        message = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= message->payload.size();
      }
    }
    Sent(SendOne(rest, std::move(message)));
  }
}

absl::StatusOr<bool> ControlLink::SendOne(bool rest,
                                          std::shared_ptr<const EncodedControl> message) {
  const Instant limit = Clock::Real().Now() + kSendLimit;
  if (rest) {
    RF_RETURN_IF_ERROR(connection_->Flush(limit));
    return true;
  }
  if (message == nullptr) {
    message = std::make_shared<EncodedControl>(EncodeControl(BeatMessage{NowNs()}));
  }
  RF_RETURN_IF_ERROR(
      connection_->Send(message->type, std::as_bytes(std::span(message->payload)), limit));
  return true;
}

Duration ControlLink::LookPeriod() const {
  return std::min<Duration>(kBeatPeriod, silence_limit_.load() / 4);
}

absl::Status ControlLink::LookAtSilence(bool message) {
  const Instant now = clock_.Now();
  // Whatever has held this thread up since it last looked.
  silence_.Look(std::exchange(look_due_, now + LookPeriod()), now);
  // Perhaps part of a long message; messages may also have come together and wait.
  const int64_t bytes = connection_->bytes_received();
  if (std::exchange(bytes_heard_, bytes) != bytes || message) silence_.Heard(now);
  if (silence_.At(now) <= silence_limit_.load()) return absl::OkStatus();
  silent_ = true;
  return absl::UnavailableError(
      absl::StrCat("nothing was heard for ", Seconds(silence_.At(now)), " s"));
}

std::optional<ControlLink::Finishing> ControlLink::finishing() {
  MutexLock lock(&mutex_);
  return finishing_;
}

void ControlLink::NoteBeat(const BeatMessage& beat) {
  // The quickest beat says most.
  const int64_t ahead = NowNs() - beat.sent_ns;
  const int64_t known = clock_ahead_ns_;
  if (known == 0 || ahead < known) clock_ahead_ns_ = ahead;
}

absl::Status ControlLink::ReadOne() {
  absl::StatusOr<Connection::Message> received =
      connection_->Receive(Clock::Real().Now() + LookPeriod());
  const bool quiet = absl::IsDeadlineExceeded(received.status());
  if (const std::optional<Finishing> finishing = this->finishing(); finishing.has_value()) {
    const bool over = Clock::Real().Now() >= finishing->limit || !(received.ok() || quiet);
    return over ? finishing->why : absl::OkStatus();
  }
  if (!received.ok() && !quiet) return received.status();
  RF_RETURN_IF_ERROR(LookAtSilence(received.ok()));
  if (quiet) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(ControlMessage message, DecodeControl(received->type, received->payload));
  if (const auto* beat = std::get_if<BeatMessage>(&message)) {
    NoteBeat(*beat);
  } else {
    handler_.on_message(std::move(message));
  }
  return absl::OkStatus();
}

void ControlLink::ReadLoop() {
  absl::Status status;
  while (status.ok()) status = ReadOne();
  {
    MutexLock lock(&mutex_);
    if (ended_.ok()) ended_ = status;
    status = ended_;
    connection_->Close();
    changed_.SignalAll();
  }
  handler_.on_end(status);
}

}  // namespace ringfill
