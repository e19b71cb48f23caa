// What ranks that are threads of this process compute and talk with: CPU devices that share a
// model, or GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/compute/cpu/cpu_model.h"
#include "engine/compute/device.h"
#include "engine/stream/host_stream.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// Outlives what it makes. Used by one thread, except MakeDevice.
class RankBackend {
 public:
  using Ends = std::vector<std::unique_ptr<Communicator>>;

  virtual ~RankBackend() = default;

  virtual std::string_view name() const = 0;  // "cpu", "cuda"
  virtual const ModelConfig& config() const = 0;
  virtual const KvGeometry& geometry() const = 0;
  // The device of each of the first ranks, once. Several ranks' may be made at once. May take long.
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice(int rank) = 0;
  // Ends of a new group of the ranks that first had these numbers; those of the group before are
  // gone.
  // `while_waiting`: as Workers::Reform's.
  virtual absl::StatusOr<Ends> MakeGroup(const std::vector<int>& members, uint64_t epoch,
                                         const std::function<bool()>& while_waiting) = 0;
  // A new epoch of `ranks`. REQUIRES: no device runs an operation.
  virtual void StartEpoch(int ranks) = 0;
};

struct CpuBackendOptions {
  CpuModelOptions model;
  int64_t pages_per_rank = 0;
  int threads_per_rank = 1;
  int spin_rounds = 0;
  HostStreamFactory make_stream = MakeInlineStream;
  // Empty: the local transport.
  std::function<absl::StatusOr<RankBackend::Ends>(int ranks, uint64_t epoch)> make_group;
  const Clock* clock = &Clock::Real();
};
std::unique_ptr<RankBackend> MakeCpuBackend(std::shared_ptr<const Model> model,
                                            const CpuBackendOptions& options);

}  // namespace ringfill
