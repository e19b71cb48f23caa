// What one rank of a tcp group does: its transfers, moved over links to all the others.
//
// Exchange: the receiver tells the sender that it has room and for how much; the sender compares
// and sends. All-gather: parts up to kEagerBytes are sent at once to everybody, larger ones like
// exchanges. So a link never carries bytes that have nowhere to go (an eager part that comes one
// call early has a buffer), and news of an abort or a death is never behind them.
//
// Links are watched as long as the group lasts, between transfers too: each end sends a beat on a
// link on which it has sent nothing for a while, and a link on which nothing has come for the
// silence limit, not even a part of a frame, is dead. A link that is slow but moves bytes is not,
// nor is one whose peer computes with all its cores: beats are not the compute threads'. Time in
// which this process was stopped does not count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tcp/heartbeat.h"
#include "engine/comm/tcp/link.h"
#include "engine/comm/transfer.h"

namespace ringfill {

// How links are watched.
struct LinkWatch {
  Duration silence_limit{};  // 0: they are not
  // Until when a peer may take to begin: it is part of the group once all its links are made.
  Instant begins;
  // Called once for each link that is found dead, by the thread that drives the mesh.
  std::function<void(int peer)> on_dead;
  const Clock* clock = &Clock::Real();  // of the watch alone
};

// One thread at a time. The first failure aborts: every transfer fails with it, every peer is told.
class Mesh {
 public:
  // links: [ranks], null at `rank`. `trace` and `waker` outlive the mesh.
  Mesh(int rank, std::vector<std::unique_ptr<Link>> links, Waker& waker,
       const std::atomic<TraceBuffer*>& trace, LinkWatch watch);
  ~Mesh();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  void Add(Communicator::ExchangeArgs args, std::shared_ptr<HostTransfer> transfer);
  void Add(Communicator::AllGatherArgs args, std::shared_ptr<HostTransfer> transfer);
  // There are transfers that are not done, or peers that have not been told of an abort.
  bool busy() const;

  // Moves what can be moved. When nothing could and something is still to be done, looks out for
  // input for as long as `spin`, then waits for input, a deadline, or the waker.
  void Turn(Duration spin);

  // Sends beats and looks for dead links when it is time to; reads what has come. Turn does it too.
  void Tend();
  // When it is time to; never when links are not watched, or no more after an abort.
  Instant tend_at() const { return abort_status_.ok() ? tend_at_ : Instant::max(); }

  // The first wins. REQUIRES: !status.ok().
  void Abort(const absl::Status& status);
  // OK until something aborted.
  const absl::Status& abort_status() const { return abort_status_; }

 private:
  static constexpr size_t kEagerBytes = 64 << 10;

  struct Announced {
    uint32_t tag;
    uint64_t bytes;
  };
  struct Peer final : FrameSink {
    Mesh* mesh = nullptr;
    int rank = 0;
    std::unique_ptr<Link> link;
    absl::Status gone;            // why nothing more comes from it
    Silence silence;              // since bytes last came
    uint64_t written_before = 0;  // by the link, after beats were last due
    std::optional<Announced> exchange_ready, gather_ready;
    // A small part of the all-gather after the current one.
    bool early_coming = false, early = false;
    std::vector<std::byte> early_part;
    std::vector<std::byte> abort_payload;
    uint32_t exchanges_sent = 0, exchanges_received = 0;

    absl::StatusOr<std::span<std::byte>> OnHeader(const FrameHeader& header) override {
      return mesh->OnHeader(*this, header);
    }
    absl::Status OnFrame(const FrameHeader& header) override {
      return mesh->OnFrame(*this, header);
    }
  };
  struct Incoming {
    size_t received = 0;
    bool whole = false;
    Instant first, last;
  };
  struct ExchangeOp {
    Communicator::ExchangeArgs args;
    std::shared_ptr<HostTransfer> transfer;
    bool active = false, send_started = false;
    Instant begin;
    Incoming in;
  };
  struct GatherOp {
    Communicator::AllGatherArgs args;
    std::shared_ptr<HostTransfer> transfer;
    bool active = false, large = false;
    Instant begin;
    std::vector<Incoming> in;        // [ranks]
    std::vector<bool> send_started;  // [ranks]
  };

  absl::StatusOr<std::span<std::byte>> OnHeader(Peer& peer, const FrameHeader& header);
  absl::Status OnFrame(Peer& peer, const FrameHeader& header);
  absl::StatusOr<std::span<std::byte>> OnExchange(Peer& peer, const FrameHeader& header);
  absl::StatusOr<std::span<std::byte>> OnGather(Peer& peer, const FrameHeader& header);
  absl::StatusOr<std::span<std::byte>> Unexpected(const Peer& peer, const FrameHeader& header);
  absl::Status PartMismatch(int peer, uint64_t theirs, uint64_t ours) const;

  absl::Status Progress();
  // Runs the operations at the front, one after the other, as far as they go.
  template <typename Op>
  absl::Status ProgressInOrder(std::deque<Op>& ops);
  // False: its events are still to come.
  absl::StatusOr<bool> MayStart(const std::vector<EventPtr>& after, Instant deadline) const;
  absl::Status Activate(ExchangeOp& op);
  absl::Status Activate(GatherOp& op);
  // Starts to send what the peers have room for; true when nothing is left to move.
  absl::StatusOr<bool> Advance(ExchangeOp& op);
  absl::StatusOr<bool> Advance(GatherOp& op);
  absl::Status TakeEarlyPart(GatherOp& op, Peer& peer);
  absl::Status StartSendingPart(GatherOp& op, Peer& peer);
  absl::Status AwaitedFrom(const Peer& peer, Instant deadline, const char* what) const;
  void Complete(ExchangeOp& op);
  void Complete(GatherOp& op);
  void Trace(const OpLabel& label, Instant begin) const;

  absl::Status TendLinks(Instant due, Instant now);
  absl::Status Write();
  // True when something came, be it the end of a link.
  absl::StatusOr<bool> ReadAll();
  absl::Status Read(Peer& peer, bool& any);
  void Lose(Peer& peer, absl::string_view why);
  bool SpinForInput(Duration spin);
  void WaitForInput();
  // The first event that keeps both queues from moving, if that is all there is to wait for.
  EventPtr AwaitedEvent() const;

  const int rank_;
  std::vector<Peer> peers_;
  Waker& waker_;
  const std::atomic<TraceBuffer*>& trace_;
  const LinkWatch watch_;
  Instant tend_at_ = Instant::max();
  std::deque<ExchangeOp> exchanges_;
  std::deque<GatherOp> gathers_;
  uint32_t gather_call_ = 0;  // of the active one, or the last
  absl::Status abort_status_;
  Instant tell_until_;  // after an abort
};

}  // namespace ringfill
