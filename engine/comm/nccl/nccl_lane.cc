#include "engine/comm/nccl/nccl_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/comm/nccl/detached_call.h"
#include "engine/comm/transfer.h"
#include "engine/compute/cuda/cuda_api.h"

namespace ringfill {
namespace {

// Between two looks of the watch while something is under way.
constexpr Duration kWatchPause = std::chrono::milliseconds(2);
// The same of who waits for NCCL to join, or for the GPU to come to rest.
constexpr Duration kPoll = std::chrono::milliseconds(2);
// Until who waits for an event on the host looks whether the group was aborted.
constexpr Duration kAbortLook = std::chrono::milliseconds(2);
// At first, of who waits for a transfer.
constexpr Duration kPause = std::chrono::microseconds(20);

absl::Status NcclFailed(const char* what, int rank, int device, ncclResult_t result,
                        const char* detail) {
  const std::string text =
      absl::StrCat("rank ", rank, ", GPU ", device, ": ", what,
                   ": NCCL: ", ncclGetErrorString(result), *detail == '\0' ? "" : ": ", detail);
  const bool lost = result == ncclRemoteError || result == ncclSystemError;
  return lost ? absl::UnavailableError(text) : absl::InternalError(text);
}

Duration Between(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  const cudaError_t error = cudaEventElapsedTime(&ms, from, to);
  IgnoreCuda(error);
  if (error != cudaSuccess) return {};
  return std::chrono::duration_cast<Duration>(std::chrono::duration<float, std::milli>(ms));
}

}  // namespace

// ---- NcclTransfer

bool NcclTransfer::Look() const {
  bool ended = false;
  {
    MutexLock lock(&lane_->mutex_);
    if (state_ == State::kDone) return true;
    ended = lane_->ended_;
    if (!ended) {
      // Aborted kernels end early: what they leave is no result.
      if (state_ != State::kQueued || lane_->comm_ == nullptr) return false;
      if (QueryEvent(record_.end.get()) != cudaSuccess) return false;  // the watch sees to errors
    }
  }
  if (ended) {
    // Read after the end, because the abort came before it; without the lock: see NcclAbort.
    const absl::Status aborted = lane_->abort().status();
    MutexLock lock(&lane_->mutex_);
    if (state_ != State::kDone) Complete(aborted);
    return true;
  }
  // Without the lock: these may ask transfers of this lane.
  for (const EventPtr& event : after_) {
    if (event == nullptr) continue;
    if (!event->done()) return false;
    const absl::Status status = event->Await(Instant::max());
    if (status.ok()) continue;
    lane_->abort().Abort(status);
    return false;
  }
  MutexLock lock(&lane_->mutex_);
  if (state_ == State::kDone) return true;
  time_ = Between(record_.start.get(), record_.end.get());
  if (record_.trace != nullptr && record_.anchor != nullptr) {
    const Instant begin = record_.anchored_at + Between(record_.anchor->get(), record_.start.get());
    record_.trace->Add({move_.label, TraceLane::kComm, begin, begin + time_});
  }
  Complete(absl::OkStatus());
  return true;
}

void NcclTransfer::SetQueued(NcclRecord record) {
  MutexLock lock(&lane_->mutex_);
  if (state_ != State::kStarted) return;
  record_ = std::move(record);
  state_ = State::kQueued;
}

void NcclTransfer::Complete(absl::Status status) const {
  status_ = std::move(status);
  state_ = State::kDone;
}

absl::Status NcclTransfer::Await(Instant deadline) {
  // As AwaitCudaEvent does.
  constexpr Duration kSpin = std::chrono::microseconds(50);
  constexpr Duration kLongestPause = std::chrono::microseconds(200);
  const Instant start = Clock::Real().Now();
  Duration pause = kPause;
  while (!Look()) {
    const Instant now = Clock::Real().Now();
    if (now >= deadline) return absl::DeadlineExceededError("queued work did not finish in time");
    if (now - start < kSpin) continue;
    std::this_thread::sleep_for(std::min(pause, deadline - now));
    pause = std::min(2 * pause, kLongestPause);
  }
  MutexLock lock(&lane_->mutex_);
  return absl::Status(status_.code(), status_.message());
}

Duration NcclTransfer::transfer_time() const {
  MutexLock lock(&lane_->mutex_);
  return time_;
}

cudaEvent_t NcclTransfer::cuda_event() const {
  MutexLock lock(&lane_->mutex_);
  return state_ == State::kStarted ? nullptr : record_.end.get();
}

// ---- NcclLane: forming

absl::StatusOr<std::shared_ptr<NcclLane>> NcclLane::Form(
    const NcclRankOptions& options, std::shared_ptr<const NcclResources> resources,
    std::shared_ptr<NcclAbort> abort) {
  auto lane = std::make_shared<NcclLane>(options, std::move(resources), std::move(abort));
  const absl::Status status = lane->Open(options);
  if (status.ok()) {
    lane->StartWatch();
    return lane;
  }
  lane->abort().Abort(status);
  lane->Stop();
  return lane->abort().status();
}

NcclLane::NcclLane(const NcclRankOptions& options, std::shared_ptr<const NcclResources> resources,
                   std::shared_ptr<NcclAbort> abort)
    : rank_(options.rank),
      ranks_(options.ranks),
      device_(options.device),
      end_limit_(options.end_limit),
      abort_(std::move(abort)),
      resources_(std::move(resources)),
      stopped_(options.stopped),
      hold_(std::make_unique<Lane>()) {}

NcclLane::~NcclLane() { RF_CHECK(resources_ == nullptr); }

absl::Status NcclLane::Open(const NcclRankOptions& options) {
  RF_RETURN_IF_CUDA_ERROR(device_, cudaSetDevice(device_));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(options.id));
  std::memcpy(&id, options.id.data(), sizeof(id));
  {
    MutexLock lock(&mutex_);
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, ranks_, id, rank_, &config);
    if (result != ncclSuccess && result != ncclInProgress) return Failed("joining", result);
  }
  return AwaitReady(options.deadline);
}

absl::Status NcclLane::AwaitReady(Instant deadline) {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const ncclResult_t state = AsyncState();
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) return Failed("joining", state);
    }
    LookWhetherStopped();
    RF_RETURN_IF_ERROR(abort_->status());
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank_, ", GPU ", device_, ": not all of ", ranks_, " ranks joined over NCCL"));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void NcclLane::LookWhetherStopped() {
  bool stopped = false;
  {
    MutexLock lock(&forming_mutex_);
    stopped = stopped_ && stopped_();
  }
  if (stopped) abort_->Abort(absl::CancelledError("told to stop while the ring was formed"));
}

void NcclLane::Formed() {
  MutexLock lock(&forming_mutex_);
  stopped_ = nullptr;
}

void NcclLane::StartWatch() {
  abort_->Join(this, [this] {
    MutexLock lock(&mutex_);
    watch_wakeup_.Signal();
  });
  watch_ = std::thread([this] { Watch(); });
}

ncclResult_t NcclLane::AsyncState() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  return result == ncclSuccess ? state : result;
}

absl::Status NcclLane::Failed(const char* what, ncclResult_t result) {
  const char* detail = comm_ == nullptr ? "" : ncclGetLastError(comm_);
  return NcclFailed(what, rank_, device_, result, detail == nullptr ? "" : detail);
}

// ---- NcclLane: queueing

NcclLane::TransferPtr NcclLane::Start(const NcclMove& move, std::vector<EventPtr> after,
                                      Instant deadline) {
  auto transfer =
      std::make_shared<NcclTransfer>(shared_from_this(), move, std::move(after), deadline);
  {
    MutexLock lock(&mutex_);
    if (ended_) return transfer;
    RF_CHECK(under_way_.size() < static_cast<size_t>(kMaxOutstandingTransfers));
    if (under_way_.empty()) watch_wakeup_.Signal();
    under_way_.push_back(transfer);
  }
  const bool here =
      held_.load() == 0 &&
      std::all_of(transfer->after_.begin(), transfer->after_.end(), [](const auto& event) {
        return event == nullptr || event->done() || CudaEventOf(event) != nullptr;
      });
  if (here) {
    Queue(transfer);
    return transfer;
  }
  held_.fetch_add(1);
  hold_->Post([this, transfer] {
    (void)cudaSetDevice(device_);  // as in Watch
    if (AwaitOnHost(*transfer)) Queue(transfer);
    held_.fetch_sub(1);
  });
  return transfer;
}

bool NcclLane::AwaitOnHost(const NcclTransfer& transfer) {
  for (const EventPtr& event : transfer.after_) {
    if (event == nullptr) continue;
    while (!event->done() && CudaEventOf(event) == nullptr) {
      if (abort_->aborted()) return false;
      event->Await(Clock::Real().Now() + kAbortLook).IgnoreError();  // asked again below
    }
  }
  return true;
}

void NcclLane::Queue(const TransferPtr& transfer) {
  for (const EventPtr& event : transfer->after_) {
    if (event == nullptr || !event->done()) continue;
    const absl::Status status = event->Await(Instant::max());
    if (!status.ok()) return abort_->Abort(status);
  }
  // Before the lock, which events of this lane's transfers take.
  std::vector<cudaEvent_t> after;
  for (const EventPtr& event : transfer->after_) {
    const cudaEvent_t cuda_event = event == nullptr ? nullptr : CudaEventOf(event);
    if (cuda_event != nullptr) after.push_back(cuda_event);
  }
  absl::StatusOr<std::optional<NcclRecord>> record;
  {
    MutexLock lock(&mutex_);
    if (comm_ == nullptr || abort_->aborted()) return;  // the watch ends it
    record = QueueLocked(*transfer, after);
  }
  if (!record.ok()) return abort_->Abort(record.status());
  if (record->has_value()) transfer->SetQueued(*std::move(*record));
}

absl::StatusOr<std::optional<NcclRecord>> NcclLane::QueueLocked(
    const NcclTransfer& transfer, const std::vector<cudaEvent_t>& after) {
  RF_RETURN_IF_CUDA_ERROR(device_, cudaSetDevice(device_));
  NcclRecord record;
  RF_ASSIGN_OR_RETURN(record.start, CudaEventHandle::Make(CudaEventHandle::Timing::kOn));
  RF_ASSIGN_OR_RETURN(record.end, CudaEventHandle::Make(CudaEventHandle::Timing::kOn));
  record.trace = trace_;
  if (record.trace != nullptr && record.trace->enabled()) {
    AnchorTrace(record);
  } else {
    record.trace = nullptr;
  }
  for (const cudaEvent_t event : after) {
    RF_RETURN_IF_CUDA_ERROR(device_, cudaStreamWaitEvent(stream(), event, 0));
  }
  RF_RETURN_IF_CUDA_ERROR(device_, cudaEventRecord(record.start.get(), stream()));
  RF_RETURN_IF_ERROR(QueueMove(transfer.move_));
  if (comm_ == nullptr) return std::nullopt;
  RF_RETURN_IF_CUDA_ERROR(device_, cudaEventRecord(record.end.get(), stream()));
  return record;
}

absl::Status NcclLane::QueueMove(const NcclMove& move) {
  if (move.send.empty() && move.recv.empty()) return absl::OkStatus();
  ncclResult_t result = ncclGroupStart();
  const auto call = [&result](ncclResult_t called) {
    if (result == ncclSuccess || result == ncclInProgress) result = called;
  };
  if (move.label.kind == OpKind::kAllGather) {
    call(ncclAllGather(move.send.data(), move.recv.data(), move.send.size(), ncclUint8, comm_,
                       stream()));
  } else {
    if (!move.send.empty()) {
      call(ncclSend(move.send.data(), move.send.size(), ncclUint8, move.to, comm_, stream()));
    }
    if (!move.recv.empty()) {
      call(ncclRecv(move.recv.data(), move.recv.size(), ncclUint8, move.from, comm_, stream()));
    }
  }
  call(ncclGroupEnd());
  // The kernel is in the stream only when the communicator says so. This takes a moment of NCCL's
  // own thread; the first transfer between two ranks, which connects them, was made at forming.
  while (result == ncclInProgress) {
    mutex_.Unlock();
    std::this_thread::yield();
    mutex_.Lock();
    if (comm_ == nullptr) return absl::OkStatus();
    result = AsyncState();
  }
  return result == ncclSuccess ? absl::OkStatus() : Failed("queueing a transfer", result);
}

void NcclLane::AnchorTrace(NcclRecord& record) {
  if (QueryStream(stream()) == cudaSuccess) {
    absl::StatusOr<CudaEventHandle> event = CudaEventHandle::Make(CudaEventHandle::Timing::kOn);
    if (event.ok() && cudaEventRecord(event->get(), stream()) == cudaSuccess) {
      anchored_at_ = Clock::Real().Now();
      anchor_ = std::make_shared<CudaEventHandle>(*std::move(event));
    }
  }
  record.anchor = anchor_;
  record.anchored_at = anchored_at_;
}

// ---- NcclLane: watching

void NcclLane::Watch() {
  // Calls of a thread that chose no device give the process a context on the first one.
  (void)cudaSetDevice(device_);
  bool stop = false;
  while (!stop) {
    if (abort_->aborted()) return EndAll();
    {
      MutexLock lock(&mutex_);
      if (!stop_ && !abort_->aborted()) {
        if (under_way_.empty()) {
          watch_wakeup_.Wait(&mutex_);
        } else {
          watch_wakeup_.WaitUntil(&mutex_, Clock::Real().Now() + kWatchPause);
        }
      }
      stop = stop_ && !abort_->aborted();
    }
    LookWhetherStopped();
    LookAfterTransfers();
    CheckCommunicator();
  }
}

void NcclLane::LookAfterTransfers() {
  for (;;) {
    TransferPtr first;
    {
      MutexLock lock(&mutex_);
      if (under_way_.empty()) return;
      first = under_way_.front();
    }
    if (first->Look()) {
      MutexLock lock(&mutex_);
      under_way_.pop_front();
      continue;
    }
    if (Clock::Real().Now() < first->deadline_) break;
    const NcclMove& move = first->move_;
    const bool gather = move.label.kind == OpKind::kAllGather;
    abort_->Abort(absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank_, ", GPU ", device_, ": ",
        gather ? absl::StrCat("an all-gather of ", move.send.size(), " bytes")
               : absl::StrCat("an exchange (", move.send.size(), " bytes to rank ", move.to, ", ",
                              move.recv.size(), " from rank ", move.from, ")"),
        " was not done by its deadline")));
    return;
  }
  const Instant now = Clock::Real().Now();
  bool late = false;
  {
    MutexLock lock(&mutex_);
    late = std::any_of(under_way_.begin(), under_way_.end(),
                       [now](const TransferPtr& t) { return now >= t->deadline_; });
  }
  if (late) {
    abort_->Abort(absl::DeadlineExceededError(
        absl::StrCat("rank ", rank_, ", GPU ", device_,
                     ": a transfer queued behind others was not done by its deadline")));
  }
}

void NcclLane::CheckCommunicator() {
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (comm_ == nullptr || under_way_.empty()) return;
    const ncclResult_t state = AsyncState();
    const cudaError_t error = QueryStream(stream());
    if (error != cudaSuccess && error != cudaErrorNotReady) {
      status = CudaStatus(error, "a transfer", device_);
    } else if (state != ncclSuccess && state != ncclInProgress) {
      status = Failed("a transfer", state);
    }
  }
  if (!status.ok()) abort_->Abort(status);
}

void NcclLane::EndAll() {
  const Instant until = Clock::Real().Now() + end_limit_;
  ncclComm_t comm;
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    comm = std::exchange(comm_, nullptr);
  }
  // Also where nothing failed: ncclCommDestroy wants ncclCommFinalize, and both wait for peers.
  const auto give_back = [comm, device = device_, resources = resources_] {
    (void)cudaSetDevice(device);
    (void)ncclCommAbort(comm);
  };
  const bool given_back = comm == nullptr || EndsInTime(give_back, until);
  if (!given_back || !AwaitStream(until)) {
    hangs_ = true;
    Log(LogLevel::kError,
        "NCCL or a GPU does not let go of aborted transfers; their communicator is left behind",
        {{"rank", rank_}, {"device", device_}, {"waited_s", Seconds(end_limit_)}});
  } else if (!abort_->Rest(this, until)) {
    hangs_ = true;
    Log(LogLevel::kError, "another GPU may still use the buffers of aborted transfers",
        {{"rank", rank_}, {"device", device_}, {"waited_s", Seconds(end_limit_)}});
  }
  std::deque<TransferPtr> ended;
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    ended.swap(under_way_);
  }
  for (const TransferPtr& transfer : ended) (void)transfer->Look();
}

bool NcclLane::AwaitStream(Instant until) {
  while (QueryStream(stream()) == cudaErrorNotReady) {
    if (Clock::Real().Now() >= until) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void NcclLane::Stop() {
  std::deque<TransferPtr> left;
  {
    MutexLock lock(&mutex_);
    left = under_way_;
  }
  const bool all_done =
      std::all_of(left.begin(), left.end(), [](const TransferPtr& t) { return t->Look(); });
  // Other ends of the process are about to go as well. What they still wait for never comes, and
  // giving memory back may wait for all GPUs.
  if (!all_done || abort_->Shared(this)) {
    abort_->Abort(absl::CancelledError("the communicator was destroyed"));
  }
  hold_.reset();
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    watch_wakeup_.Signal();
  }
  if (watch_.joinable()) watch_.join();
  EndAll();
  abort_->Leave(this);
  // CUDA may wait for all GPUs before it frees: the one that hangs was waited for above.
  const Duration limit = hangs_ ? Duration(0) : end_limit_;
  const bool freed = EndsInTime([freed = std::move(resources_)]() mutable { freed = nullptr; },
                                Clock::Real().Now() + limit);
  if (!freed && !hangs_) {
    Log(LogLevel::kError, "a GPU does not take back the buffers of a communicator",
        {{"rank", rank_}, {"device", device_}, {"waited_s", Seconds(end_limit_)}});
  }
}

}  // namespace ringfill
