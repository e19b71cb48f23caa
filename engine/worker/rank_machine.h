// What a rank in a process of its own computes and talks with, made as its leader's WELCOME says:
// a CPU device and connections to the other ranks, or a GPU and NCCL. The sibling of
// rank_backend.h, whose ranks share a process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tcp/tcp.h"
#include "engine/compute/device.h"
#include "engine/model/model.h"
#include "engine/worker/control_message.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// A ring to join: what its transport needs of both.
struct RingTerms {
  TcpGroupOptions tcp;   // rank, members, deadline and stop hold for NCCL too
  std::string group_id;  // see FormMessage
};

// Used by the rank's host thread.
class RankMachine {
 public:
  virtual ~RankMachine() = default;

  virtual Device& device() = 0;
  virtual const KvGeometry& geometry() const = 0;
  // This rank's end of a ring; those of rings before are gone. The errors and `missing` are
  // FormTcpGroup's; over NCCL nobody can say who is missing.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> JoinRing(const RingTerms& terms,
                                                                 std::vector<int>& missing) = 0;
  // After JoinRing. REQUIRES: the device runs no operation.
  virtual void StartEpoch() = 0;
};

// The KV pages of the ring's ranks.
KvGeometry RankGeometry(const ModelConfig& config, RankDevice device, DType kv_dtype,
                        int page_tokens);

struct RankThreads {
  int count = 1;
  int spin_rounds = 0;
};
// `listener`: of the ring's connections; outlives the machine.
std::unique_ptr<RankMachine> MakeCpuMachine(std::shared_ptr<const Model> model,
                                            const WelcomeMessage& welcome,
                                            const RankThreads& threads, Listener& listener);

// How processes get at GPUs. Thread-safe.
class GpuMachines {
 public:
  virtual ~GpuMachines() = default;

  // Looks at one, which takes some of its memory for as long as the process lives.
  // INVALID_ARGUMENT when there is no such device, FAILED_PRECONDITION without a driver or a GPU,
  // or with one that is too old.
  virtual absl::StatusOr<WorkerGpu> Look(int device) const = 0;
  // Takes its memory and brings it the weights; may take long. RESOURCE_EXHAUSTED with the numbers
  // when they do not fit beside the ring's pages, INVALID_ARGUMENT naming what of the model GPUs
  // do not take. `stopped` is asked meanwhile: CANCELLED when it says true.
  virtual absl::StatusOr<std::unique_ptr<RankMachine>> Make(
      std::shared_ptr<const Model> model, const WelcomeMessage& welcome, const WorkerGpu& gpu,
      const std::function<bool()>& stopped) const = 0;
  // For FormMessage::group_id, where the leader is; needs no GPU.
  virtual absl::StatusOr<std::string> NewGroupId() const = 0;
};
// Null in a build without GPU support.
std::shared_ptr<const GpuMachines> CudaMachines();
inline constexpr char kNoGpuSupport[] =
    "this build has no GPU support: build it where the CUDA toolkit, cuBLASLt and NCCL are";

}  // namespace ringfill
