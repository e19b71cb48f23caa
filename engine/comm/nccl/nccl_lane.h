// One rank's NCCL communicator and its stream, and the transfers that are under way on them.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/lane.h"
#include "engine/comm/nccl/nccl_abort.h"
#include "engine/comm/nccl/nccl_group.h"
#include "engine/comm/nccl/nccl_resources.h"
#include "engine/compute/cuda/cuda_event.h"

namespace ringfill {

class NcclTransfer;

// What moves: an exchange or an all-gather, by the label's kind.
struct NcclMove {
  OpLabel label;
  int to = 0, from = 0;  // of an exchange
  std::span<const std::byte> send;
  std::span<std::byte> recv;
};

// A transfer on the stream.
struct NcclRecord {
  CudaEventHandle start, end;  // around what moves
  // While tracing: an event of the stream and when it was reached.
  TraceBuffer* trace = nullptr;
  std::shared_ptr<CudaEventHandle> anchor;
  Instant anchored_at{};
};

// Start and Stop are called by one thread at a time, the rest by any.
class NcclLane : public std::enable_shared_from_this<NcclLane> {
 public:
  // Returns when all ranks have joined.
  static absl::StatusOr<std::shared_ptr<NcclLane>> Form(
      const NcclRankOptions& options, std::shared_ptr<const NcclResources> resources,
      std::shared_ptr<NcclAbort> abort);
  NcclLane(const NcclRankOptions& options, std::shared_ptr<const NcclResources> resources,
           std::shared_ptr<NcclAbort> abort);
  ~NcclLane();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }
  // REQUIRES, of both: not stopped.
  const NcclResources& resources() const { return *resources_; }
  cudaStream_t stream() const { return resources_->stream(); }
  NcclAbort& abort() { return *abort_; }

  std::shared_ptr<NcclTransfer> Start(const NcclMove& move, std::vector<EventPtr> after,
                                      Instant deadline);
  void TraceTo(TraceBuffer* trace) { trace_ = trace; }
  // NcclRankOptions::stopped is not asked from here on. By the thread that called Form.
  void Formed();
  // Ends what is under way, with an abort if need be, and gives the communicator back, or leaves it
  // behind: see kNcclEndLimit.
  void Stop();

 private:
  friend class NcclTransfer;
  using TransferPtr = std::shared_ptr<NcclTransfer>;

  absl::Status Open(const NcclRankOptions& options);
  absl::Status AwaitReady(Instant deadline);
  // Aborts when it is so.
  void LookWhetherStopped();
  void StartWatch();
  // The host waits for events that the GPU cannot wait for; false when the group was aborted.
  bool AwaitOnHost(const NcclTransfer& transfer);
  void Queue(const TransferPtr& transfer);
  // Null when the communicator was aborted meanwhile.
  absl::StatusOr<std::optional<NcclRecord>> QueueLocked(const NcclTransfer& transfer,
                                                        const std::vector<cudaEvent_t>& after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status QueueMove(const NcclMove& move) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnchorTrace(NcclRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the communicator says of itself; ncclInProgress while a call is at work.
  ncclResult_t AsyncState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Failed(const char* what, ncclResult_t result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Watch();
  void LookAfterTransfers();
  void CheckCommunicator();
  // Gives the communicator back and completes what is under way. The second time nothing.
  void EndAll();
  // False at `until`.
  bool AwaitStream(Instant until);

  const int rank_, ranks_, device_;
  const Duration end_limit_;
  const std::shared_ptr<NcclAbort> abort_;
  // Null once stopped: written by Stop when no other thread is left.
  std::shared_ptr<const NcclResources> resources_;
  // NCCL, this GPU or another one of the process did not let go in time. Of the watch, and of Stop
  // when that has ended.
  bool hangs_ = false;
  Mutex forming_mutex_;
  std::function<bool()> stopped_ ABSL_GUARDED_BY(forming_mutex_);  // empty once it is formed
  std::atomic<TraceBuffer*> trace_{nullptr};

  Mutex mutex_;
  CondVar watch_wakeup_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: not there yet, or given back
  // The streams have come to rest, or did not in time, and nothing is queued any more.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<TransferPtr> under_way_ ABSL_GUARDED_BY(mutex_);  // in the order they were started
  // See NcclRecord.
  std::shared_ptr<CudaEventHandle> anchor_ ABSL_GUARDED_BY(mutex_);
  Instant anchored_at_ ABSL_GUARDED_BY(mutex_){};

  std::atomic<int> held_{0};  // transfers in hold_
  std::unique_ptr<Lane> hold_;
  std::thread watch_;
};

// Done when its events were reached, or when its lane has ended.
class NcclTransfer final : public Transfer, public CudaBacked {
 public:
  NcclTransfer(std::shared_ptr<NcclLane> lane, const NcclMove& move, std::vector<EventPtr> after,
               Instant deadline)
      : lane_(std::move(lane)), move_(move), deadline_(deadline), after_(std::move(after)) {}

  absl::Status Await(Instant deadline) override;
  bool done() const override { return Look(); }
  Duration transfer_time() const override;
  cudaEvent_t cuda_event() const override;

 private:
  friend class NcclLane;
  enum class State { kStarted, kQueued, kDone };

  void SetQueued(NcclRecord record);
  // Completes it when that can be. True when it is done.
  bool Look() const;
  void Complete(absl::Status status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_);

  const std::shared_ptr<NcclLane> lane_;
  const NcclMove move_;
  const Instant deadline_;
  const std::vector<EventPtr> after_;

  mutable State state_ ABSL_GUARDED_BY(lane_->mutex_) = State::kStarted;
  mutable absl::Status status_ ABSL_GUARDED_BY(lane_->mutex_);
  mutable Duration time_ ABSL_GUARDED_BY(lane_->mutex_){};
  mutable NcclRecord record_ ABSL_GUARDED_BY(lane_->mutex_);
};

}  // namespace ringfill
