#include "engine/comm/nccl/nccl_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/comm/nccl/detached_call.h"
#include "engine/comm/nccl/nccl_lane.h"
#include "engine/comm/nccl/nccl_resources.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cuda_event.h"

namespace ringfill {
namespace {

// cmake/RingfillNccl.cmake asks the same of the headers, and says why.
constexpr int kLeastVersion = NCCL_VERSION(2, 25, 0);

constexpr size_t kPieceBytes = NcclResources::kPieceBytes;
// Between two calls of `while_waiting`.
constexpr Duration kCallerPause = std::chrono::milliseconds(2);

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<NcclLane> lane) : lane_(std::move(lane)) {}
  ~NcclCommunicator() override { lane_->Stop(); }

  int rank() const override { return lane_->rank(); }
  int size() const override { return lane_->ranks(); }

  TransferPtr StartExchange(ExchangeArgs args) override {
    RF_CHECK(args.to >= 0 && args.to < size() && args.from >= 0 && args.from < size());
    return lane_->Start({args.label, args.to, args.from, args.send, args.recv},
                        std::move(args.after), args.deadline);
  }

  TransferPtr StartAllGather(AllGatherArgs args) override {
    RF_CHECK(args.recv.size() == args.send.size() * static_cast<size_t>(size()));
    return lane_->Start({args.label, 0, 0, args.send, args.recv}, std::move(args.after),
                        args.deadline);
  }

  absl::Status Barrier(Instant deadline) override {
    const std::byte mine{1};
    std::vector<std::byte> all(static_cast<size_t>(size()));
    return GatherOnHost({&mine, 1}, all, deadline);
  }

  absl::Status GatherOnHost(std::span<const std::byte> send, std::span<std::byte> recv,
                            Instant deadline) override;

  void Abort(absl::Status status) override { lane_->abort().Abort(status); }
  void TraceTo(TraceBuffer* trace) override { lane_->TraceTo(trace); }

  // Uses what NCCL connects with its first use: each two ranks, and all for a short all-gather and
  // one as long as there are buffers for. An algorithm that NCCL keeps for still longer ones is
  // connected by the first of these.
  absl::Status MeetAll(Instant deadline);
  // NcclRankOptions::stopped is not asked any more.
  void Formed() { lane_->Formed(); }

 private:
  // Of at most kPieceBytes.
  absl::Status Gather(std::span<const std::byte> send, std::span<std::byte> recv, Instant deadline);

  const std::shared_ptr<NcclLane> lane_;
};

absl::Status NcclCommunicator::GatherOnHost(std::span<const std::byte> send,
                                            std::span<std::byte> recv, Instant deadline) {
  RF_CHECK(recv.size() == send.size() * static_cast<size_t>(size()));
  RF_RETURN_IF_ERROR(lane_->abort().status());
  std::vector<std::byte> parts;
  for (size_t done = 0; done < send.size(); done += kPieceBytes) {
    const size_t bytes = std::min(kPieceBytes, send.size() - done);
    parts.resize(bytes * static_cast<size_t>(size()));
    const absl::Status status = Gather(send.subspan(done, bytes), parts, deadline);
    if (!status.ok()) {
      lane_->abort().Abort(status);
      return lane_->abort().status();
    }
    for (size_t r = 0; r < static_cast<size_t>(size()); ++r) {
      std::copy_n(parts.begin() + static_cast<ptrdiff_t>(r * bytes), bytes,
                  recv.begin() + static_cast<ptrdiff_t>(r * send.size() + done));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                      Instant deadline) {
  const int device = lane_->device();
  const cudaStream_t stream = lane_->stream();
  RF_RETURN_IF_CUDA_ERROR(device, cudaSetDevice(device));
  std::byte* const part = lane_->resources().on_device();
  std::byte* const parts = part + send.size();
  std::copy(send.begin(), send.end(), lane_->resources().on_host());
  RF_RETURN_IF_CUDA_ERROR(device, cudaMemcpyAsync(part, lane_->resources().on_host(), send.size(),
                                                  cudaMemcpyHostToDevice, stream));
  OpLabel label;
  label.kind = OpKind::kAllGather;
  label.bytes = static_cast<int64_t>(send.size());
  RF_RETURN_IF_ERROR(
      lane_->Start({label, 0, 0, {part, send.size()}, {parts, recv.size()}}, {}, deadline)
          ->Await(Instant::max()));
  RF_RETURN_IF_CUDA_ERROR(device, cudaMemcpyAsync(lane_->resources().on_host(), parts, recv.size(),
                                                  cudaMemcpyDeviceToHost, stream));
  RF_ASSIGN_OR_RETURN(const CudaEventHandle copied,
                      CudaEventHandle::Make(CudaEventHandle::Timing::kOff));
  RF_RETURN_IF_CUDA_ERROR(device, cudaEventRecord(copied.get(), stream));
  RF_RETURN_IF_ERROR(AwaitCudaEvent(copied.get(), deadline));
  std::copy_n(lane_->resources().on_host(), recv.size(), recv.begin());
  return absl::OkStatus();
}

absl::Status NcclCommunicator::MeetAll(Instant deadline) {
  std::byte* const bytes = lane_->resources().on_device();
  for (int shift = 0; shift < size(); ++shift) {
    NcclMove move;
    move.label.kind = OpKind::kExchange;
    move.to = (rank() + shift) % size();
    move.from = (rank() + size() - shift) % size();
    move.send = {bytes, 1};
    move.recv = {bytes + 1, 1};
    RF_RETURN_IF_ERROR(lane_->Start(move, {}, deadline)->Await(Instant::max()));
  }
  const std::vector<std::byte> mine(kPieceBytes);
  std::vector<std::byte> all(kPieceBytes * static_cast<size_t>(size()));
  RF_RETURN_IF_ERROR(GatherOnHost(mine, all, deadline));
  return Barrier(deadline);
}

using ResourcesPtr = std::shared_ptr<const NcclResources>;

absl::Status AskWhetherToGoOn(const NcclGroupOptions& options) {
  if (!options.while_waiting || options.while_waiting()) return absl::OkStatus();
  return absl::CancelledError("told to stop while the ring was formed");
}

// What ranks of these devices need, in a group of so many. At the deadline an error, also where a
// GPU does not answer.
absl::StatusOr<std::vector<ResourcesPtr>> MakeResources(const std::vector<int>& devices, int ranks,
                                                        const NcclGroupOptions& options) {
  using Made = absl::StatusOr<ResourcesPtr>;
  std::vector<std::shared_ptr<Made>> made;
  std::vector<DetachedCall> calls;
  for (const int device : devices) {
    made.push_back(std::make_shared<Made>());
    calls.emplace_back(
        [device, ranks, to = made.back()] { *to = NcclResources::Make(device, ranks); });
  }
  absl::Status status;
  for (size_t i = 0; i < calls.size() && status.ok(); ++i) {
    while (status.ok() &&
           !calls[i].Await(std::min(options.deadline, Clock::Real().Now() + kCallerPause))) {
      status = AskWhetherToGoOn(options);
      if (status.ok() && Clock::Real().Now() >= options.deadline) {
        status = absl::DeadlineExceededError(
            absl::StrCat("GPU ", devices[i], " gave no memory for NCCL in time"));
      }
    }
    // Shares nothing with what another thread destroys: see HostEvent.
    if (status.ok()) status = absl::Status(made[i]->status().code(), made[i]->status().message());
  }
  std::vector<ResourcesPtr> all;
  if (status.ok()) {
    for (const auto& one : made) all.push_back(*std::move(*one));
    return all;
  }
  (void)EndsInTime([made = std::move(made)]() mutable { made.clear(); },
                   Clock::Real().Now() + options.end_limit);
  return status;
}

absl::StatusOr<std::unique_ptr<Communicator>> FormEnd(const NcclRankOptions& options,
                                                      ResourcesPtr resources,
                                                      std::shared_ptr<NcclAbort> abort) {
  RF_ASSIGN_OR_RETURN(std::shared_ptr<NcclLane> lane,
                      NcclLane::Form(options, std::move(resources), std::move(abort)));
  auto end = std::make_unique<NcclCommunicator>(std::move(lane));
  RF_RETURN_IF_ERROR(end->MeetAll(options.deadline));
  end->Formed();
  return end;
}

std::string VersionText(int code) {
  // NCCL_VERSION's, from 2.9 on and before.
  const int major_unit = code >= 10000 ? 10000 : 1000;
  return absl::StrCat(code / major_unit, ".", code % major_unit / 100, ".", code % 100);
}

}  // namespace

absl::Status CheckNccl() {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result == ncclSuccess && version >= kLeastVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("NCCL ", VersionText(kLeastVersion), " or newer is needed and this is ",
                   VersionText(version), ": install it or set ranks.backend: cpu"));
}

absl::StatusOr<NcclId> NewNcclId() {
  RF_RETURN_IF_ERROR(CheckNccl());
  ncclUniqueId id;
  static_assert(sizeof(id) == sizeof(NcclId));
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    return absl::InternalError(
        absl::StrCat("NCCL makes no id for a group: ", ncclGetErrorString(result)));
  }
  NcclId bytes;
  std::memcpy(bytes.data(), &id, sizeof(id));
  return bytes;
}

absl::StatusOr<std::unique_ptr<Communicator>> FormNcclRank(const NcclRankOptions& options) {
  RF_CHECK(options.rank >= 0 && options.rank < options.ranks);
  const NcclGroupOptions group{
      .deadline = options.deadline,
      .while_waiting = [&options] { return !options.stopped || !options.stopped(); },
      .end_limit = options.end_limit};
  RF_ASSIGN_OR_RETURN(std::vector<ResourcesPtr> resources,
                      MakeResources({options.device}, options.ranks, group));
  return FormEnd(options, std::move(resources.front()), std::make_shared<NcclAbort>());
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> MakeNcclGroup(
    const std::vector<int>& devices, const NcclGroupOptions& options) {
  RF_CHECK(!devices.empty());
  RF_RETURN_IF_ERROR(CheckNccl());
  // Between ranks of one process NCCL's kernels use the buffers of both ends directly. It opens to
  // them what cudaMalloc gave, and no stream-ordered memory.
  RF_RETURN_IF_ERROR(OpenMemoryToPeers(devices));
  const size_t ranks = devices.size();
  RF_ASSIGN_OR_RETURN(std::vector<ResourcesPtr> resources,
                      MakeResources(devices, static_cast<int>(ranks), options));
  // Last: NCCL waits for whoever has an id.
  RF_ASSIGN_OR_RETURN(const NcclId id, NewNcclId());
  const auto abort = std::make_shared<NcclAbort>();
  std::vector<std::unique_ptr<Communicator>> ends(ranks);
  std::atomic<size_t> done{0};
  std::vector<std::thread> threads;
  // Joining and the first transfer between two ranks wait for the other one.
  for (size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      absl::StatusOr<std::unique_ptr<Communicator>> end = FormEnd({.rank = static_cast<int>(r),
                                                                   .ranks = static_cast<int>(ranks),
                                                                   .device = devices[r],
                                                                   .id = id,
                                                                   .deadline = options.deadline,
                                                                   .end_limit = options.end_limit},
                                                                  std::move(resources[r]), abort);
      if (end.ok()) {
        ends[r] = *std::move(end);
      } else {
        abort->Abort(end.status());
      }
      ++done;
    });
  }
  while (options.while_waiting && done < ranks && !abort->aborted()) {
    const absl::Status go_on = AskWhetherToGoOn(options);
    if (!go_on.ok()) abort->Abort(go_on);
    std::this_thread::sleep_for(kCallerPause);
  }
  for (std::thread& thread : threads) thread.join();
  RF_RETURN_IF_ERROR(abort->status());
  return ends;
}

}  // namespace ringfill
