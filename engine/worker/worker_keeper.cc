// The roster's keeper: one thread that starts workers, ends late ones, and says how others were
// lost.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/worker/worker_roster.h"

namespace ringfill {
namespace {

constexpr Duration kJoinWords = std::chrono::seconds(10);       // from connection to JOIN
constexpr Duration kRefusedPatience = std::chrono::seconds(2);  // to read why
// A process whose connection has ended is about to be reaped.
constexpr Duration kExitPatience = std::chrono::milliseconds(500);
constexpr Instant kNever = Instant::max();

}  // namespace

void WorkerRoster::KeepLoop() {
  std::list<WorkerPeerPtr> peers;
  std::vector<std::unique_ptr<ChildProcess>> children;
  while (true) {
    children.clear();
    peers.clear();
    MutexLock lock(&mutex_);
    if (stopping_) return;
    const Instant now = Clock::Real().Now();
    NoteChildExits(now);
    // Losses schedule starts, and what was started may come to be late.
    Instant wake = ReportLosses(now);
    wake = std::min(wake, StartDue(now));
    wake = std::min(wake, EndLate(now));
    children.swap(ended_children_);
    peers.swap(ended_peers_);
    if (!children.empty() || !peers.empty()) continue;
    keeper_wakes_.WaitUntil(&mutex_, std::min(wake, now + std::chrono::hours(1)));
  }
}

ChildProcess* WorkerRoster::ChildOf(const WorkerPeer& peer) {
  if (peer.seat_ < 0) return nullptr;
  ChildProcess* const child = seats_[static_cast<size_t>(peer.seat_)].child.get();
  return child != nullptr && child->pid() == peer.join_.pid ? child : nullptr;
}

void WorkerRoster::ScheduleStart(Seat& seat, Instant now) {
  if (starting_) return;  // AwaitAll says what is wrong
  if (now - seat.started > kHealthy) seat.backoff = options_.first_backoff;
  seat.start_at = now + seat.backoff;
  seat.backoff = std::min<Duration>(2 * seat.backoff, options_.most_backoff);
}

void WorkerRoster::NoteChildExits(Instant now) {
  for (size_t s = 0; s < seats_.size(); ++s) {
    Seat& seat = seats_[s];
    if (seat.child == nullptr || !seat.child->exit().has_value()) continue;
    const pid_t pid = seat.child->pid();
    // One that has joined is lost first: its link says so in a moment.
    const auto joined = std::find_if(peers_.begin(), peers_.end(), [&](const WorkerPeerPtr& p) {
      return p->seat_ == static_cast<int>(s) && p->join_.pid == pid && !p->loss_.has_value();
    });
    if (joined != peers_.end()) continue;
    if (seat.last_pid != pid) {
      const std::string how =
          seat.late ? LateText()
                    : absl::StrCat(seat.child->exit()->Describe(), " before it was ready");
      if (seat.late) metrics_.lost[static_cast<size_t>(LossReason::kLate)]->Increment();
      if (!seat.last.empty()) absl::StrAppend(&seat.last, "; ");
      absl::StrAppend(&seat.last, "its process (pid ", pid, ") ", how);
      seat.last_pid = pid;
      Log(LogLevel::kError, "a worker ended before it was ready",
          {{"rank", s}, {"pid", pid}, {"how", how}});
    }
    ended_children_.push_back(std::move(seat.child));
    ScheduleStart(seat, now);
    changed_.SignalAll();
  }
}

Instant WorkerRoster::ReportLosses(Instant now) {
  Instant again = kNever;
  for (auto it = peers_.begin(); it != peers_.end();) {
    const auto here = it++;
    WorkerPeer& peer = **here;
    if (!peer.gone_) continue;
    if (!ReportLoss(peer, now)) {
      again = std::min(again, peer.since_ + kExitPatience);
      continue;
    }
    ended_peers_.splice(ended_peers_.end(), peers_, here);
    changed_.SignalAll();
  }
  return again;
}

bool WorkerRoster::ReportLoss(WorkerPeer& peer, Instant now) {
  using State = WorkerPeer::State;
  LossReason reason =
      peer.link_->silent() ? LossReason::kSilent : peer.dropped_.value_or(LossReason::kConnection);
  std::string how(peer.end_.message());
  if (ChildProcess* const child = ChildOf(peer); child != nullptr) {
    const std::optional<ChildExit> exit = child->exit();
    const bool by_us = peer.link_->silent() || peer.dropped_.has_value();
    if (!by_us && !exit.has_value() && now < peer.since_ + kExitPatience) return false;
    if (!by_us && exit.has_value()) {
      reason = exit->by_signal ? LossReason::kSignal : LossReason::kExit;
      how = exit->Describe();
    } else if (!exit.has_value()) {
      child->Kill(SIGKILL);
      absl::StrAppend(&how, "; it was killed");
    }
  }
  const std::string text = absl::StrCat(
      peer.state_ == State::kGreeting ? std::string("a worker") : peer.Name(), ": ", how);
  peer.loss_ = absl::UnavailableError(text);
  if (peer.state_ == State::kReady || reason == LossReason::kLate) {
    metrics_.lost[static_cast<size_t>(reason)]->Increment();
    Log(LogLevel::kError, "a worker was lost",
        {{"rank", peer.seat_.load()},
         {"pid", peer.join_.pid},
         {"host", peer.join_.host},
         {"how", how}});
  }
  if (peer.state_ >= State::kJoined && peer.state_ <= State::kReady) {
    Seat& seat = seats_[static_cast<size_t>(peer.seat_)];
    seat.last = text;
    seat.last_pid = peer.join_.pid;
  }
  return true;
}

Instant WorkerRoster::EndLate(Instant now) {
  using State = WorkerPeer::State;
  Instant again = kNever;
  for (const WorkerPeerPtr& peer : peers_) {
    // AwaitJoined has a limit of its own.
    if (peer->gone_ || peer->state_ == State::kReady || peer->state_ == State::kJoined) continue;
    const Duration limit = peer->state_ == State::kGreeting  ? kJoinWords
                           : peer->state_ == State::kRefused ? kRefusedPatience
                                                             : options_.join_timeout;
    if (now >= peer->since_ + limit) {
      const bool late = peer->state_ == State::kWelcomed;
      if (late) peer->dropped_ = LossReason::kLate;
      peer->link_->Close(
          absl::DeadlineExceededError(late ? LateText() : "it did not say who it is in time"));
    } else {
      again = std::min(again, peer->since_ + limit);
    }
  }
  return std::min(again, EndLateChildren(now));
}

Instant WorkerRoster::EndLateChildren(Instant now) {
  Instant again = kNever;
  for (Seat& seat : seats_) {
    if (seat.child == nullptr || seat.peer != nullptr || starting_ || seat.late) continue;
    if (now < seat.started + options_.join_timeout) {
      again = std::min(again, seat.started + options_.join_timeout);
    } else if (!seat.child->exit().has_value()) {
      seat.late = true;
      seat.child->Kill(SIGKILL);
    }
  }
  return again;
}

std::string WorkerRoster::LateText() const {
  return absl::StrCat("was not ready after ", Seconds(options_.join_timeout),
                      " s (ring.join_timeout_s), so it was ended");
}

Instant WorkerRoster::StartDue(Instant now) {
  Instant again = kNever;
  for (size_t s = 0; s < seats_.size(); ++s) {
    Seat& seat = seats_[s];
    if (!seat.start_at.has_value() || seat.child != nullptr) continue;
    if (now >= *seat.start_at) {
      StartChild(s, now);
    }
    if (seat.start_at.has_value()) again = std::min(again, *seat.start_at);
  }
  return again;
}

void WorkerRoster::StartChild(size_t index, Instant now) {
  Seat& seat = seats_[index];
  seat.start_at.reset();
  seat.started = now;
  std::vector<std::string> command = options_.command;
  for (std::string word :
       {std::string("--leader"), address(), std::string("--rank"), absl::StrCat(index),
        std::string("--secret-fd"), absl::StrCat(ChildProcess::kInputFd), std::string("--model"),
        options_.model_path}) {
    command.push_back(std::move(word));
  }
  if (!options_.devices.empty()) {
    command.insert(command.end(), {"--device", absl::StrCat(options_.devices[index])});
  }
  absl::StatusOr<std::unique_ptr<ChildProcess>> child =
      ChildProcess::Start(command, secret_.bytes(), [this] {
        MutexLock lock(&mutex_);
        keeper_wakes_.SignalAll();
      });
  if (!child.ok()) {
    Log(LogLevel::kError, "a worker cannot be started",
        {{"rank", index}, {"status", child.status().ToString()}});
    seat.last = std::string(child.status().message());
    ScheduleStart(seat, now);
    changed_.SignalAll();
    return;
  }
  metrics_.started.Increment();
  seat.last.clear();
  seat.last_pid = 0;
  seat.late = false;
  seat.child = *std::move(child);
}

std::string WorkerRoster::Missing(WorkerPeer::State least) const {
  std::string text;
  int ready = 0;
  for (size_t s = 0; s < seats_.size(); ++s) {
    const Seat& seat = seats_[s];
    std::string why;
    if (seat.peer != nullptr && seat.peer->state_ >= least) {
      ++ready;
      continue;
    }
    if (seat.peer != nullptr) {
      why = absl::StrCat("pid ", seat.peer->join_.pid, " on ", seat.peer->join_.host,
                         " is still loading the model");
    } else if (!seat.last.empty()) {
      why = seat.last;
    } else if (seat.child != nullptr) {
      why = absl::StrCat("its process (pid ", seat.child->pid(), ") has not called yet");
    } else {
      why = "nobody has called";
    }
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", s, ": ", why);
  }
  if (text.empty()) return text;
  text =
      absl::StrCat(ready, " of ", seats_.size(), " workers have joined at ", address(), "; ", text);
  if (const int64_t refused = listener_->refused(); refused > 0) {
    absl::StrAppend(&text, "; ", refused, " callers did not prove that they know the secret");
  }
  absl::StrAppend(&text,
                  options_.start_workers
                      ? "; the workers' own log lines say more"
                      : absl::StrCat("; start each missing one with: ringfilld worker "
                                     "--leader ",
                                     address(), " --rank K --secret-file FILE --model FILE",
                                     ring_.device == RankDevice::kCuda ? " --device N" : ""));
  return text;
}

}  // namespace ringfill
