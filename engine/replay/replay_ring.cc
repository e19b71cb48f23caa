#include "engine/replay/replay_ring.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/comm/local.h"
#include "engine/worker/run_step.h"

namespace ringfill {
namespace {

CpuModelOptions ModelOptions(const PlanLogHeader& header) {
  CpuModelOptions options;
  options.dtype = header.dtype;
  options.kv_dtype = header.kv_dtype;
  options.isa = header.isa;
  options.page_tokens = header.geometry.page_tokens;
  options.ranks = header.ranks;
  options.strict = header.strict;
  return options;
}

}  // namespace

ReplayRing::ReplayRing(std::shared_ptr<const Model> model, const PlanLogHeader& header, int threads,
                       Duration min_round_timeout)
    : header_(header),
      threads_per_rank_(std::max(1, threads / header.ranks)),
      min_round_timeout_(min_round_timeout),
      model_(std::move(model), ModelOptions(header), Clock::Real()) {
  const std::vector<int32_t> all_new(static_cast<size_t>(header.ranks), -1);
  Form(all_new);
}

ReplayRing::Seat ReplayRing::NewSeat() {
  Seat seat;
  seat.device = std::make_unique<CpuDevice>(
      model_, CpuDeviceOptions{.pages = header_.pages_per_rank, .threads = threads_per_rank_});
  RankOptions options;
  options.model = model_.config();
  options.geometry = model_.geometry();
  options.gather_bytes = static_cast<size_t>(header_.gather_bytes);
  options.min_round_timeout = min_round_timeout_;
  seat.rank = std::make_unique<Rank>(options, *seat.device, nullptr);
  return seat;
}

void ReplayRing::Form(std::span<const int32_t> from) {
  for (Seat& seat : seats_) seat.comm.reset();  // the old group's ends go together
  std::vector<Seat> old = std::exchange(seats_, {});
  auto ends = MakeLocalGroup(static_cast<int>(from.size()), Clock::Real());
  for (size_t r = 0; r < from.size(); ++r) {
    Seat seat = from[r] < 0 ? NewSeat() : std::move(old[static_cast<size_t>(from[r])]);
    RF_CHECK(seat.rank != nullptr);
    seat.comm = std::move(ends[r]);
    seat.rank->Join(seat.comm.get());
    seat.device->Recover();
    seats_.push_back(std::move(seat));
  }
  model_.StartEpoch(ranks());
}

std::vector<RankStepResult> ReplayRing::Run(const StepPlan& plan, const StepControl& control) {
  std::vector<RankStepResult> results(seats_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < seats_.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = RunStep(*seats_[r].rank, plan, control); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace ringfill
