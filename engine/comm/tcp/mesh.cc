#include "engine/comm/tcp/mesh.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cpu_pause.h"

namespace ringfill {
namespace {

// How often events that are awaited beside traffic are looked at, and how long a wait for one
// keeps everything else waiting.
constexpr Duration kLook = std::chrono::microseconds(200);
constexpr Duration kEventWait = std::chrono::milliseconds(1);
// How long peers that do not read are given to learn of an abort.
constexpr Duration kTellLimit = std::chrono::milliseconds(200);

void Copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty() && to.data() != from.data()) {
    std::memmove(to.data(), from.data(), from.size());
  }
}

}  // namespace

Mesh::Mesh(int rank, std::vector<std::unique_ptr<Link>> links, Waker& waker,
           const std::atomic<TraceBuffer*>& trace, LinkWatch watch)
    : rank_(rank), peers_(links.size()), waker_(waker), trace_(trace), watch_(std::move(watch)) {
  if (watch_.silence_limit > Duration(0) && size() > 1) tend_at_ = watch_.clock->Now();
  for (int peer = 0; peer < size(); ++peer) {
    peers_[peer].mesh = this;
    peers_[peer].rank = peer;
    peers_[peer].link = std::move(links[peer]);
    peers_[peer].silence = Silence(watch_.begins);
    RF_CHECK((peers_[peer].link == nullptr) == (peer == rank_));
  }
}

Mesh::~Mesh() { RF_CHECK(exchanges_.empty() && gathers_.empty()); }

void Mesh::Add(Communicator::ExchangeArgs args, std::shared_ptr<HostTransfer> transfer) {
  if (!abort_status_.ok()) return transfer->Complete(abort_status_, {});
  RF_CHECK(exchanges_.size() + gathers_.size() < kMaxOutstandingTransfers);
  ExchangeOp op;
  op.args = std::move(args);
  op.transfer = std::move(transfer);
  exchanges_.push_back(std::move(op));
}

void Mesh::Add(Communicator::AllGatherArgs args, std::shared_ptr<HostTransfer> transfer) {
  if (!abort_status_.ok()) return transfer->Complete(abort_status_, {});
  RF_CHECK(exchanges_.size() + gathers_.size() < kMaxOutstandingTransfers);
  GatherOp op;
  op.args = std::move(args);
  op.transfer = std::move(transfer);
  gathers_.push_back(std::move(op));
}

bool Mesh::busy() const {
  if (abort_status_.ok()) return !exchanges_.empty() || !gathers_.empty();
  return Clock::Real().Now() < tell_until_ &&
         std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
           return peer.link != nullptr && peer.gone.ok() && peer.link->wants_to_write();
         });
}

void Mesh::Abort(const absl::Status& status) {
  RF_CHECK(!status.ok());
  if (!abort_status_.ok()) return;
  abort_status_ = status;
  tell_until_ = Clock::Real().Now() + kTellLimit;
  for (Peer& peer : peers_) {
    if (peer.link != nullptr) peer.link->Abort(status);
  }
  Write().IgnoreError();
  for (ExchangeOp& op : std::exchange(exchanges_, {})) op.transfer->Complete(status, {});
  for (GatherOp& op : std::exchange(gathers_, {})) op.transfer->Complete(status, {});
}

void Mesh::Turn(Duration spin) {
  Tend();
  const auto move = [this]() -> absl::Status {
    RF_RETURN_IF_ERROR(Progress());
    RF_RETURN_IF_ERROR(Write());
    return Progress();
  };
  if (abort_status_.ok()) {
    const size_t before = exchanges_.size() + gathers_.size();
    absl::Status status = move();
    if (status.ok() && exchanges_.size() + gathers_.size() < before) return;
    if (status.ok() && !SpinForInput(spin)) {
      WaitForInput();
      status = ReadAll().status();
    }
    if (!status.ok()) Abort(status);
    return;
  }
  Write().IgnoreError();
  if (busy()) WaitForInput();
}

// ---- what arrives

absl::StatusOr<std::span<std::byte>> Mesh::OnHeader(Peer& peer, const FrameHeader& header) {
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kReady:
    case FrameType::kGatherReady: {
      const bool exchange = static_cast<FrameType>(header.type) == FrameType::kReady;
      std::optional<Announced>& ready = exchange ? peer.exchange_ready : peer.gather_ready;
      if (ready.has_value() || header.length > 0) return Unexpected(peer, header);
      ready = Announced{header.tag, header.message_bytes};
      return std::span<std::byte>();
    }
    case FrameType::kExchange:
      return OnExchange(peer, header);
    case FrameType::kGather:
      return OnGather(peer, header);
    case FrameType::kBeat:
      if (header.length > 0) return Unexpected(peer, header);
      return std::span<std::byte>();
    case FrameType::kAbort:
      if (header.length > kMaxStatusBytes) return Unexpected(peer, header);
      peer.abort_payload.resize(header.length);
      return std::span(peer.abort_payload);
  }
  return Unexpected(peer, header);
}

absl::StatusOr<std::span<std::byte>> Mesh::OnExchange(Peer& peer, const FrameHeader& header) {
  if (exchanges_.empty()) return Unexpected(peer, header);
  ExchangeOp& op = exchanges_.front();
  const std::span<std::byte> recv = op.args.recv;
  if (!op.active || op.args.from != peer.rank || header.tag != peer.exchanges_received ||
      op.in.whole || header.length == 0 || header.message_bytes != recv.size() ||
      header.length > recv.size() - op.in.received) {
    return Unexpected(peer, header);
  }
  if (op.in.received == 0) op.in.first = Clock::Real().Now();
  return recv.subspan(op.in.received, header.length);
}

absl::StatusOr<std::span<std::byte>> Mesh::OnGather(Peer& peer, const FrameHeader& header) {
  const bool active = !gathers_.empty() && gathers_.front().active;
  if (!active || header.tag != gather_call_) {
    if (header.tag != gather_call_ + 1 || peer.early || header.message_bytes > kEagerBytes ||
        header.length != header.message_bytes) {
      return Unexpected(peer, header);
    }
    peer.early_part.resize(header.length);
    peer.early_coming = true;
    return std::span(peer.early_part);
  }
  GatherOp& op = gathers_.front();
  const size_t bytes = op.args.send.size();
  Incoming& in = op.in[peer.rank];
  if (header.message_bytes != bytes) return PartMismatch(peer.rank, header.message_bytes, bytes);
  if (in.whole || header.length > bytes - in.received || (header.length == 0 && bytes > 0)) {
    return Unexpected(peer, header);
  }
  if (in.received == 0) in.first = Clock::Real().Now();
  return op.args.recv.subspan(peer.rank * bytes + in.received, header.length);
}

absl::Status Mesh::OnFrame(Peer& peer, const FrameHeader& header) {
  const auto count = [&](Incoming& in) {
    in.received += header.length;
    if (in.received < header.message_bytes) return;
    in.whole = true;
    in.last = Clock::Real().Now();
  };
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kExchange:
      count(exchanges_.front().in);
      break;
    case FrameType::kGather:
      if (!std::exchange(peer.early_coming, false)) {
        count(gathers_.front().in[peer.rank]);
        break;
      }
      peer.early = true;
      // Its call may have begun since its first bytes came.
      if (header.tag == gather_call_) return TakeEarlyPart(gathers_.front(), peer);
      break;
    case FrameType::kAbort:
      return DecodeStatus(peer.abort_payload);
    default:
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> Mesh::Unexpected(const Peer& peer, const FrameHeader& header) {
  return absl::DataLossError(absl::StrCat("rank ", peer.rank, " sent rank ", rank_,
                                          " a frame that was not expected: type ", header.type,
                                          ", number ", header.tag, ", ", header.length, " of ",
                                          header.message_bytes, " bytes"));
}

absl::Status Mesh::PartMismatch(int peer, uint64_t theirs, uint64_t ours) const {
  return absl::DataLossError(absl::StrCat("rank ", peer, " gave ", theirs,
                                          " bytes to a collective call, rank ", rank_, " gave ",
                                          ours));
}

// ---- transfers

absl::Status Mesh::Progress() {
  RF_RETURN_IF_ERROR(ProgressInOrder(gathers_));
  return ProgressInOrder(exchanges_);
}

template <typename Op>
absl::Status Mesh::ProgressInOrder(std::deque<Op>& ops) {
  while (!ops.empty()) {
    Op& op = ops.front();
    if (!op.active) {
      RF_ASSIGN_OR_RETURN(const bool may, MayStart(op.args.after, op.args.deadline));
      if (!may) return absl::OkStatus();
      RF_RETURN_IF_ERROR(Activate(op));
    }
    RF_ASSIGN_OR_RETURN(const bool done, Advance(op));
    if (!done) return absl::OkStatus();
    Complete(op);
    ops.pop_front();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Mesh::MayStart(const std::vector<EventPtr>& after, Instant deadline) const {
  for (const EventPtr& event : after) {
    if (event == nullptr) continue;
    if (event->done()) {
      RF_RETURN_IF_ERROR(event->Await(Instant::max()));
    } else if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank_, " waited for its own queued work before a transfer"));
    } else {
      return false;
    }
  }
  return true;
}

absl::Status Mesh::Activate(ExchangeOp& op) {
  op.active = true;
  op.begin = Clock::Real().Now();
  const Communicator::ExchangeArgs& args = op.args;
  if (args.to == rank_ && !args.send.empty()) {
    if (args.send.size() != args.recv.size()) {
      return absl::DataLossError(absl::StrCat("rank ", rank_, " sent ", args.send.size(),
                                              " bytes to itself and expected ", args.recv.size()));
    }
    Copy(args.recv, args.send);
    op.send_started = op.in.whole = true;
    op.in.first = op.begin;
    op.in.last = Clock::Real().Now();
    return absl::OkStatus();
  }
  if (args.send.empty()) op.send_started = true;
  if (args.recv.empty()) {
    op.in.whole = true;
  } else if (args.from != rank_) {
    Peer& from = peers_[args.from];
    from.link->Announce(FrameType::kReady, ++from.exchanges_received, args.recv.size());
  }
  return absl::OkStatus();
}

absl::Status Mesh::Activate(GatherOp& op) {
  const size_t bytes = op.args.send.size();
  op.active = true;
  op.large = bytes > kEagerBytes;
  op.begin = Clock::Real().Now();
  op.in.resize(size());
  op.send_started.resize(size());
  ++gather_call_;
  Copy(op.args.recv.subspan(rank_ * bytes, bytes), op.args.send);
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) continue;
    if (op.large) {
      peer.link->Announce(FrameType::kGatherReady, gather_call_, bytes);
    } else {
      op.send_started[peer.rank] = true;
      peer.link->StartSending(Link::Stream::kGather, gather_call_, op.args.send);
    }
    if (peer.early) RF_RETURN_IF_ERROR(TakeEarlyPart(op, peer));
  }
  return absl::OkStatus();
}

absl::Status Mesh::TakeEarlyPart(GatherOp& op, Peer& peer) {
  const size_t bytes = op.args.send.size();
  peer.early = false;
  if (peer.early_part.size() != bytes) {
    return PartMismatch(peer.rank, peer.early_part.size(), bytes);
  }
  Copy(op.args.recv.subspan(peer.rank * bytes, bytes), peer.early_part);
  op.in[peer.rank] = {bytes, true, op.begin, op.begin};
  return absl::OkStatus();
}

absl::StatusOr<bool> Mesh::Advance(ExchangeOp& op) {
  const Communicator::ExchangeArgs& args = op.args;
  Peer& to = peers_[args.to];
  if (!op.send_started && to.exchange_ready.has_value()) {
    const Announced ready = *std::exchange(to.exchange_ready, std::nullopt);
    if (ready.tag != ++to.exchanges_sent || ready.bytes != args.send.size()) {
      return absl::DataLossError(absl::StrCat("rank ", rank_, " sent ", args.send.size(),
                                              " bytes, rank ", args.to, " expected ", ready.bytes));
    }
    to.link->StartSending(Link::Stream::kExchange, ready.tag, args.send);
    op.send_started = true;
  }
  const bool sent =
      op.send_started && (to.link == nullptr || !to.link->sending(Link::Stream::kExchange));
  if (!op.in.whole) {
    RF_RETURN_IF_ERROR(AwaitedFrom(peers_[args.from], args.deadline, "to send"));
  } else if (!sent) {
    RF_RETURN_IF_ERROR(AwaitedFrom(to, args.deadline, "to take"));
  }
  return sent && op.in.whole;
}

absl::StatusOr<bool> Mesh::Advance(GatherOp& op) {
  bool done = true;
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) continue;
    if (peer.gather_ready.has_value()) RF_RETURN_IF_ERROR(StartSendingPart(op, peer));
    const bool sent = op.send_started[peer.rank] && !peer.link->sending(Link::Stream::kGather);
    if (sent && op.in[peer.rank].whole) continue;
    done = false;
    RF_RETURN_IF_ERROR(AwaitedFrom(peer, op.args.deadline, "in a collective call, with"));
  }
  return done;
}

absl::Status Mesh::StartSendingPart(GatherOp& op, Peer& peer) {
  const Announced& ready = *peer.gather_ready;
  if (ready.tag != gather_call_) {
    // One call early, which only a call later can tell from a mistake.
    if (ready.tag == gather_call_ + 1) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("rank ", peer.rank, " is in collective call ",
                                            ready.tag, ", rank ", rank_, " in ", gather_call_));
  }
  if (!op.large || ready.bytes != op.args.send.size()) {
    return PartMismatch(peer.rank, ready.bytes, op.args.send.size());
  }
  peer.gather_ready.reset();
  peer.link->StartSending(Link::Stream::kGather, gather_call_, op.args.send);
  op.send_started[peer.rank] = true;
  return absl::OkStatus();
}

absl::Status Mesh::AwaitedFrom(const Peer& peer, Instant deadline, const char* what) const {
  if (!peer.gone.ok()) return peer.gone;
  if (Clock::Real().Now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank_, " waited for rank ", peer.rank, " ", what, " its bytes"));
}

void Mesh::Complete(ExchangeOp& op) {
  Duration time = op.args.recv.empty() ? Duration(0) : op.in.last - op.in.first;
  if (!op.args.send.empty() && op.args.to != rank_) {
    time = std::max(time, peers_[op.args.to].link->send_time(Link::Stream::kExchange));
  }
  Trace(op.args.label, op.begin);
  op.transfer->Complete(absl::OkStatus(), time);
}

void Mesh::Complete(GatherOp& op) {
  Duration time{};
  for (const Peer& peer : peers_) {
    if (peer.link == nullptr) continue;
    const Incoming& in = op.in[peer.rank];
    time = std::max({time, in.last - in.first, peer.link->send_time(Link::Stream::kGather)});
  }
  Trace(op.args.label, op.begin);
  op.transfer->Complete(absl::OkStatus(), time);
}

void Mesh::Trace(const OpLabel& label, Instant begin) const {
  TraceBuffer* const trace = trace_.load();
  if (trace == nullptr || !trace->enabled()) return;
  trace->Add({label, TraceLane::kComm, begin, Clock::Real().Now()});
}

// ---- sockets

void Mesh::Lose(Peer& peer, absl::string_view why) {
  peer.gone = absl::UnavailableError(absl::StrCat("rank ", peer.rank, " is gone: ", why));
}

void Mesh::Tend() {
  const Instant due = tend_at(), now = watch_.clock->Now();
  if (now < due) return;
  tend_at_ = now + kBeatPeriod;
  if (const absl::Status status = TendLinks(due, now); !status.ok()) Abort(status);
}

absl::Status Mesh::TendLinks(Instant due, Instant now) {
  RF_RETURN_IF_ERROR(ReadAll().status());
  absl::Status dead;
  for (Peer& peer : peers_) {
    if (peer.link == nullptr || !peer.gone.ok()) continue;
    peer.silence.Look(due, now);
    if (const Duration silence = peer.silence.At(now); silence > watch_.silence_limit) {
      peer.gone = absl::UnavailableError(absl::StrCat("rank ", rank_, " heard nothing from rank ",
                                                      peer.rank, " for ", Seconds(silence),
                                                      " s: the link between them is dead"));
      if (watch_.on_dead) watch_.on_dead(peer.rank);
      dead.Update(peer.gone);
      continue;
    }
    const bool quiet = peer.link->bytes_written() == peer.written_before;
    if (quiet && !peer.link->wants_to_write()) peer.link->Announce(FrameType::kBeat, 0, 0);
  }
  RF_RETURN_IF_ERROR(dead);
  RF_RETURN_IF_ERROR(Write());
  for (Peer& peer : peers_) {
    if (peer.link != nullptr) peer.written_before = peer.link->bytes_written();
  }
  return absl::OkStatus();
}

absl::Status Mesh::Write() {
  for (Peer& peer : peers_) {
    if (peer.link == nullptr || !peer.gone.ok() || !peer.link->wants_to_write()) continue;
    const absl::Status status = peer.link->Write();
    if (status.ok()) continue;
    // It may have said why before it went.
    bool any;
    if (abort_status_.ok()) RF_RETURN_IF_ERROR(Read(peer, any));
    if (peer.gone.ok()) Lose(peer, status.message());
  }
  return absl::OkStatus();
}

absl::Status Mesh::Read(Peer& peer, bool& any) {
  const Link::ReadResult result = peer.link->Read(peer);
  any = result.any || result.end || !result.socket.ok();
  if (result.any) peer.silence.Heard(watch_.clock->Now());
  if (!result.frames.ok()) return result.frames;
  if (!result.socket.ok()) {
    Lose(peer, result.socket.message());
  } else if (result.end) {
    Lose(peer, peer.link->mid_frame() ? "it closed its connection in the middle of a frame"
                                      : "it closed its connection");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Mesh::ReadAll() {
  bool any = false;
  for (Peer& peer : peers_) {
    if (peer.link == nullptr || !peer.gone.ok()) continue;
    bool came = false;
    RF_RETURN_IF_ERROR(Read(peer, came));
    any |= came;
  }
  return any;
}

bool Mesh::SpinForInput(Duration spin) {
  if (spin <= Duration(0)) return false;
  const Instant until = Clock::Real().Now() + spin;
  do {
    const absl::StatusOr<bool> any = ReadAll();
    if (!any.ok()) Abort(any.status());
    if (!any.ok() || *any) return true;
    CpuPause();
  } while (Clock::Real().Now() < until);
  return false;
}

EventPtr Mesh::AwaitedEvent() const {
  const bool exchange_moves = !exchanges_.empty() && exchanges_.front().active;
  const bool gather_moves = !gathers_.empty() && gathers_.front().active;
  if (exchange_moves || gather_moves) return nullptr;
  const auto first = [](const std::vector<EventPtr>& after) -> EventPtr {
    for (const EventPtr& event : after) {
      if (event != nullptr && !event->done()) return event;
    }
    return nullptr;
  };
  if (!exchanges_.empty()) return first(exchanges_.front().args.after);
  return gathers_.empty() ? nullptr : first(gathers_.front().args.after);
}

void Mesh::WaitForInput() {
  const Instant now = Clock::Real().Now();
  Instant until = abort_status_.ok() ? tend_at() : tell_until_;
  const auto consider = [&](bool active, Instant deadline) {
    until = std::min(until, active ? deadline : std::min(deadline, now + kLook));
  };
  if (!exchanges_.empty()) consider(exchanges_.front().active, exchanges_.front().args.deadline);
  if (!gathers_.empty()) consider(gathers_.front().active, gathers_.front().args.deadline);
  if (const EventPtr event = AwaitedEvent(); event != nullptr) {
    event->Await(now + kEventWait).IgnoreError();  // MayStart asks it again
    until = now;
  }
  std::vector<pollfd> polled = {{waker_.fd(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (peer.link == nullptr || !peer.gone.ok()) continue;
    const short in = abort_status_.ok() ? POLLIN : 0;
    const short out = peer.link->wants_to_write() ? POLLOUT : 0;
    polled.push_back({peer.link->fd(), static_cast<short>(in | out), 0});
  }
  PollUntil(polled, until);
  if (polled[0].revents != 0) waker_.Clear();
}

}  // namespace ringfill
