// What one rank has for a step: its device, its end of the communicator, buffers that live on, and
// one policy for how long to wait for peers. The passes in prefill/ and decode/ work on it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/comm/communicator.h"
#include "engine/compute/device.h"
#include "engine/layout/placement.h"
#include "engine/model/model.h"
#include "engine/schedule/step_plan.h"
#include "engine/worker/step_result.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// Constant for the life of an engine, and the same on every rank.
struct RankOptions {
  ModelConfig model;
  KvGeometry geometry;
  const Clock* clock = &Clock::Real();
  Duration min_round_timeout = std::chrono::seconds(30);
  // Most that gather-KV may hold of one layer on a rank; beyond it, shards go round the ring.
  size_t gather_bytes = size_t{256} << 20;
};

// A rank that computes slower than this is taken for stuck. The slowest core seen does thirty times
// as much in float32.
inline constexpr double kFloorOperationsPerS = 0.5e9;

// How long a rank waits for a peer in this step: what the step's work of one layer, or of the
// output head, takes a rank that has all of it at kFloorOperationsPerS; at least
// min_round_timeout.
Duration PeerTimeout(const RankOptions& options, const StepPlan& plan);

// Used by the rank's own host thread. `device` and `comm` must outlive it.
class Rank {
 public:
  Rank(const RankOptions& options, Device& device, Communicator* comm);

  // A new epoch's communicator. Buffers go, since the old one's transfers do not use them any more:
  // a ring of others wants other sizes, and a rank without memory finds room for a smaller step.
  // REQUIRES: no step is running, the old communicator is gone.
  void Join(Communicator* comm);

  int index() const { return comm_->rank(); }
  int ranks() const { return comm_->size(); }
  const RankOptions& options() const { return options_; }
  const ModelConfig& model() const { return options_.model; }
  const KvGeometry& geometry() const { return options_.geometry; }
  Device& device() { return device_; }
  Stream& stream() { return device_.stream(); }
  Communicator& comm() { return *comm_; }

  // Sets the wait limit of the step; placements of earlier steps may go.
  void BeginStep(const StepPlan& plan);
  // [plan.placements], valid until the next BeginStep.
  const std::vector<const Placement*>& placements() const { return step_placements_; }
  // Of a wait that begins now.
  Instant Deadline() const { return options_.clock->Now() + peer_timeout_; }

  // A buffer of at least `bytes` that lives on between steps; `name` and `index` say which. Its
  // contents and address are lost when it grows. Null when the device has no such memory: ask
  // `reserved` before anything that uses buffers is queued. REQUIRES: nothing queued uses it.
  std::byte* Reserve(std::string_view name, int index, size_t bytes);
  // The first failure of Reserve in this step; the ring must form anew after one.
  const absl::Status& reserved() const { return reserved_; }
  // That the device has taken, now.
  MemoryBytes Memory() const;

 private:
  struct CachedPlacement {
    PlacementSpec spec;
    std::unique_ptr<Placement> placement;
  };

  const Placement* PlacementOf(const PlacementSpec& spec);

  const RankOptions options_;
  Device& device_;
  Communicator* comm_;
  Duration peer_timeout_{};
  int placement_ranks_ = 0;  // of the cached ones
  std::vector<CachedPlacement> cached_placements_;
  std::vector<const Placement*> step_placements_;
  std::map<std::pair<std::string, int>, DeviceBuffer> buffers_;
  absl::Status reserved_;
};

// The transfers of one step: started with the step's deadline, counted into its result, and none
// left under way at its end. Used by the rank's own host thread.
class StepTransfers {
 public:
  StepTransfers(Rank& rank, RankStepResult& result) : rank_(rank), result_(result) {}

  // `kRound`: a round of the ring's attention.
  enum class Purpose { kRound, kOther };
  TransferPtr Exchange(Communicator::ExchangeArgs args, Purpose purpose);
  // Counted in comm, but neither in ring_bytes nor in transfer_s: nothing hides it, the wait for it
  // shows.
  TransferPtr AllGather(Communicator::AllGatherArgs args);
  // Of a few bytes of the host; waits.
  absl::Status GatherOnHost(std::span<const std::byte> send, std::span<std::byte> recv);
  // What is queued on the device from now on runs after `event`.
  void WaitFor(EventPtr event);
  // An event behind all that is queued on the device.
  EventPtr Record() { return rank_.stream().Record(); }

  // Counts the transfers at the front that are done.
  void Collect();
  // The host waits for all transfers, so that their buffers are free again; the first failure.
  absl::Status Finish();
  // Seconds for which the host itself was held up.
  double TakeHostWait() { return std::exchange(host_wait_s_, 0.0); }

 private:
  struct Started {
    TransferPtr transfer;
    CommKind kind;
  };
  void Count(const Started& started);
  void CountGather(size_t send_bytes);

  Rank& rank_;
  RankStepResult& result_;
  std::deque<Started> under_way_;
  double host_wait_s_ = 0;
};

}  // namespace ringfill
