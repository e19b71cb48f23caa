#include "engine/sim/virtual_group.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"

namespace ringfill {
namespace {

// An exchange or all-gather, from its start until its time is known.
struct Job {
  OpLabel label;
  int rank = 0;
  bool gather = false;
  int to = 0, from = 0;
  int64_t send_bytes = 0, recv_bytes = 0;
  const std::byte* gather_from = nullptr;
  std::byte* gather_into = nullptr;
  double earliest_s = 0;  // the host's time and all events waited for
  bool posted = false;    // ready and known to its peers
  double ready_s = 0;     // then
  bool sent = false, received = false;
  double end_s = 0;
  double moving_s = 0;  // without waiting
  bool done = false;
  absl::Status status;
  TraceBuffer* trace = nullptr;
};
using JobPtr = std::shared_ptr<Job>;

class Group {
 public:
  explicit Group(const Figures& figures)
      : figures_(figures),
        lanes_(static_cast<size_t>(figures.ranks())),
        senders_(figures.links.size()),
        receivers_(figures.links.size()) {}

  int ranks() const { return figures_.ranks(); }

  void Start(const JobPtr& job) {
    MutexLock lock(&mutex_);
    if (!abort_status_.ok()) {
      Finish(*job, abort_status_);
      return;
    }
    lanes_[Index(job->rank)].jobs.push_back(job);
    Advance();
  }

  absl::StatusOr<double> AwaitTime(const Job& job, Instant deadline) {
    MutexLock lock(&mutex_);
    while (!job.done) {
      if (!changed_.WaitUntil(&mutex_, deadline) && !job.done) {
        AbortLocked(absl::DeadlineExceededError(
            absl::StrCat("a peer of rank ", job.rank, " did not come to ",
                         std::string(OpKindName(job.label.kind)), " in time")));
      }
    }
    if (!job.status.ok()) return job.status;
    return job.end_s;
  }

  bool done(const Job& job) {
    MutexLock lock(&mutex_);
    return job.done;
  }

  void Abort(absl::Status status) {
    MutexLock lock(&mutex_);
    AbortLocked(std::move(status));
  }

 private:
  struct Lane {
    double free_s = 0;
    std::deque<JobPtr> jobs;
  };

  static size_t Index(int rank) { return static_cast<size_t>(rank); }
  size_t Pair(int from, int to) const { return Index(from) * Index(ranks()) + Index(to); }

  void Finish(Job& job, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    job.done = true;
    job.status = std::move(status);
    changed_.SignalAll();
  }

  void AbortLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    RF_CHECK(!status.ok());
    if (!abort_status_.ok()) return;
    abort_status_ = std::move(status);
    for (Lane& lane : lanes_) {
      for (const JobPtr& job : lane.jobs) Finish(*job, abort_status_);
      lane.jobs.clear();
    }
    for (auto& queue : senders_) queue.clear();
    for (auto& queue : receivers_) queue.clear();
  }

  // Works out every time that can be known by now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool moved = true;
    while (moved && abort_status_.ok()) {
      moved = false;
      for (Lane& lane : lanes_) {
        if (lane.jobs.empty()) continue;
        Job& job = *lane.jobs.front();
        if (!job.posted) {
          Post(lane, lane.jobs.front());
          moved = true;
        }
        if (job.sent && job.received) {
          lane.free_s = job.end_s;
          if (job.trace != nullptr && job.trace->enabled()) {
            job.trace->Add({job.label, TraceLane::kComm, SimulatedInstant(job.end_s - job.moving_s),
                            SimulatedInstant(job.end_s)});
          }
          Finish(job, absl::OkStatus());
          lane.jobs.pop_front();
          moved = true;
        }
        if (!abort_status_.ok()) return;
      }
      moved = Gather() || moved;
    }
  }

  void Post(const Lane& lane, const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    job->posted = true;
    job->ready_s = std::max(lane.free_s, job->earliest_s);
    job->end_s = job->ready_s;
    if (job->gather) return;
    job->sent = job->send_bytes == 0;
    job->received = job->recv_bytes == 0;
    if (!job->sent) senders_[Pair(job->rank, job->to)].push_back(job);
    if (!job->received) receivers_[Pair(job->from, job->rank)].push_back(job);
    if (!job->sent) Match(job->rank, job->to);
    if (!job->received) Match(job->from, job->rank);
  }

  void Match(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto& senders = senders_[Pair(from, to)];
    auto& receivers = receivers_[Pair(from, to)];
    if (senders.empty() || receivers.empty()) return;
    const JobPtr sender = senders.front();
    const JobPtr receiver = receivers.front();
    senders.pop_front();
    receivers.pop_front();
    if (sender->send_bytes != receiver->recv_bytes) {
      AbortLocked(absl::DataLossError(absl::StrCat("rank ", from, " sent ", sender->send_bytes,
                                                   " bytes, rank ", to, " expected ",
                                                   receiver->recv_bytes)));
      return;
    }
    const double moving = figures_.LinkSeconds(from, to, sender->send_bytes);
    const double end = std::max(sender->ready_s, receiver->ready_s) + moving;
    sender->sent = true;
    receiver->received = true;
    for (Job* job : {sender.get(), receiver.get()}) {
      job->end_s = std::max(job->end_s, end);
      job->moving_s = std::max(job->moving_s, moving);
    }
  }

  void CopyParts(const Job& to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::byte* at = to.gather_into;
    for (const Lane& lane : lanes_) {
      const Job& from = *lane.jobs.front();
      at = std::copy_n(from.gather_from, from.send_bytes, at);
    }
  }

  // True when an all-gather of all ranks could begin.
  bool Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    double begin = 0;
    for (const Lane& lane : lanes_) {
      if (lane.jobs.empty()) return false;
      const Job& job = *lane.jobs.front();
      if (!job.gather || !job.posted || job.sent) return false;
      begin = std::max(begin, job.ready_s);
    }
    const int64_t bytes = lanes_.front().jobs.front()->send_bytes;
    const double moving = figures_.GatherSeconds(bytes);
    for (const Lane& lane : lanes_) {
      const Job& job = *lane.jobs.front();
      if (job.send_bytes != bytes) {
        AbortLocked(absl::DataLossError(absl::StrCat("rank ", job.rank, " gathers ", job.send_bytes,
                                                     " bytes, rank 0 ", bytes)));
        return false;
      }
    }
    for (Lane& lane : lanes_) {
      Job& job = *lane.jobs.front();
      if (job.gather_from != nullptr) CopyParts(job);
      job.sent = job.received = true;
      job.end_s = begin + moving;
      job.moving_s = moving;
    }
    return true;
  }

  const Figures figures_;
  Mutex mutex_;
  CondVar changed_;
  absl::Status abort_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);                    // [ranks]
  std::vector<std::deque<JobPtr>> senders_ ABSL_GUARDED_BY(mutex_);    // [from, to]
  std::vector<std::deque<JobPtr>> receivers_ ABSL_GUARDED_BY(mutex_);  // [from, to]
};

class VirtualTransfer final : public Transfer, public SimulatedEvent {
 public:
  VirtualTransfer(std::shared_ptr<Group> group, JobPtr job, RankTime& time)
      : group_(std::move(group)), job_(std::move(job)), time_(time) {}

  absl::Status Await(Instant deadline) override {
    absl::StatusOr<double> time_s = AwaitTime(deadline);
    if (!time_s.ok()) return time_s.status();
    time_.HostWaitedUntil(*time_s);
    return absl::OkStatus();
  }
  bool done() const override { return group_->done(*job_); }
  absl::StatusOr<double> AwaitTime(Instant deadline) override {
    return group_->AwaitTime(*job_, deadline);
  }
  Duration transfer_time() const override { return SimulatedDuration(job_->moving_s); }

 private:
  const std::shared_ptr<Group> group_;
  const JobPtr job_;
  RankTime& time_;
};

class VirtualCommunicator final : public Communicator {
 public:
  VirtualCommunicator(std::shared_ptr<Group> group, int rank, RankTime& time)
      : group_(std::move(group)), rank_(rank), time_(time) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->ranks(); }

  TransferPtr StartExchange(ExchangeArgs args) override {
    auto job = std::make_shared<Job>();
    job->label = args.label;
    job->to = args.to;
    job->from = args.from;
    job->send_bytes = static_cast<int64_t>(args.send.size());
    job->recv_bytes = static_cast<int64_t>(args.recv.size());
    traffic_.sent_bytes += job->send_bytes;
    return Start(std::move(job), args.after, args.deadline);
  }

  TransferPtr StartAllGather(AllGatherArgs args) override {
    RF_CHECK(args.recv.size() == args.send.size() * static_cast<size_t>(size()));
    auto job = std::make_shared<Job>();
    job->label = args.label;
    job->gather = true;
    job->send_bytes = static_cast<int64_t>(args.send.size());
    traffic_.sent_bytes += job->send_bytes * (size() - 1);
    return Start(std::move(job), args.after, args.deadline);
  }

  absl::Status GatherOnHost(std::span<const std::byte> send, std::span<std::byte> recv,
                            Instant deadline) override {
    auto job = std::make_shared<Job>();
    job->label.kind = OpKind::kAllGather;
    job->gather = true;
    job->send_bytes = static_cast<int64_t>(send.size());
    job->gather_from = send.data();
    job->gather_into = recv.data();
    traffic_.sent_bytes += job->send_bytes * (size() - 1);
    return Start(std::move(job), {}, deadline)->Await(deadline);
  }

  // The limit of the wait is on the machine's clock, for peers that never come in simulated time.
  absl::Status Barrier(Instant deadline) override {
    auto job = std::make_shared<Job>();
    job->label.kind = OpKind::kAllGather;
    job->gather = true;
    return Start(std::move(job), {}, deadline)->Await(deadline);
  }

  void Abort(absl::Status status) override { group_->Abort(std::move(status)); }
  void TraceTo(TraceBuffer* trace) override { trace_ = trace; }

  // Jobs that are done by now are added up.
  VirtualTraffic Traffic() {
    std::erase_if(pending_, [this](const JobPtr& job) {
      if (!group_->done(*job)) return false;
      traffic_.lane_s += job->moving_s;
      return true;
    });
    return traffic_;
  }

 private:
  TransferPtr Start(JobPtr job, const std::vector<EventPtr>& after, Instant deadline) {
    job->rank = rank_;
    job->trace = trace_;
    job->earliest_s = time_.host_s;
    for (const EventPtr& event : after) {
      // The lane keeps order, so this rank's earlier transfers are done anyway.
      if (event == nullptr || dynamic_cast<VirtualTransfer*>(event.get()) != nullptr) continue;
      absl::StatusOr<double> time_s = AwaitEvent(*event, deadline);
      if (!time_s.ok()) {
        group_->Abort(time_s.status());
        break;
      }
      job->earliest_s = std::max(job->earliest_s, *time_s);
    }
    group_->Start(job);
    pending_.push_back(job);
    return std::make_shared<VirtualTransfer>(group_, std::move(job), time_);
  }

  static absl::StatusOr<double> AwaitEvent(Event& event, Instant deadline) {
    if (auto* simulated = dynamic_cast<SimulatedEvent*>(&event)) {
      return simulated->AwaitTime(deadline);
    }
    RF_RETURN_IF_ERROR(event.Await(deadline));
    return 0.0;
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  RankTime& time_;
  TraceBuffer* trace_ = nullptr;
  VirtualTraffic traffic_;
  std::vector<JobPtr> pending_;  // not yet in traffic_
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeVirtualGroup(const Figures& figures,
                                                            const std::vector<RankTime*>& times) {
  RF_CHECK(static_cast<int>(times.size()) == figures.ranks());
  auto group = std::make_shared<Group>(figures);
  std::vector<std::unique_ptr<Communicator>> out;
  for (int rank = 0; rank < figures.ranks(); ++rank) {
    out.push_back(
        std::make_unique<VirtualCommunicator>(group, rank, *times[static_cast<size_t>(rank)]));
  }
  return out;
}

VirtualTraffic TrafficOf(Communicator& communicator) {
  auto* virtual_communicator = dynamic_cast<VirtualCommunicator*>(&communicator);
  RF_CHECK(virtual_communicator != nullptr);
  return virtual_communicator->Traffic();
}

}  // namespace ringfill
