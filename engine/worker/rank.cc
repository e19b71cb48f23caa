#include "engine/worker/rank.h"

#include <algorithm>

#include "base/check.h"

namespace ringfill {
namespace {

// Placements kept between steps: running sequences share few.
constexpr size_t kMaxCachedPlacements = 256;
constexpr size_t kMinBufferBytes = 4096;

}  // namespace

Duration PeerTimeout(const RankOptions& options, const StepPlan& plan) {
  const ModelConfig& c = options.model;
  double rows = static_cast<double>(plan.decodes.size());
  double head_rows = rows;
  double attention = 0;  // (query, key) pairs
  for (const PrefillChunk& chunk : plan.chunks) {
    const auto tokens = static_cast<double>(chunk.tokens.size());
    rows += tokens;
    head_rows += chunk.score ? tokens : 1;
    attention += tokens * static_cast<double>(chunk.end());
  }
  for (const DecodeToken& decode : plan.decodes) {
    attention += static_cast<double>(decode.position);
  }
  const double layer = c.pair_operations() * attention + 2.0 * rows * c.layer_weights();
  const double head = 2.0 * head_rows * c.width * static_cast<double>(c.vocab);
  return std::max(options.min_round_timeout, FromSeconds((layer + head) / kFloorOperationsPerS));
}

Rank::Rank(const RankOptions& options, Device& device, Communicator* comm)
    : options_(options), device_(device), comm_(comm) {}

void Rank::Join(Communicator* comm) {
  comm_ = comm;
  if (buffers_.empty()) return;
  buffers_.clear();
  // Memory is free when the stream has come to it; a failure shows in the next step.
  stream().Synchronize(options_.clock->Now() + options_.min_round_timeout).IgnoreError();
}

void Rank::BeginStep(const StepPlan& plan) {
  peer_timeout_ = PeerTimeout(options_, plan);
  device_.SetWaitLimit(peer_timeout_);
  reserved_ = absl::OkStatus();
  if (placement_ranks_ != ranks() || cached_placements_.size() > kMaxCachedPlacements) {
    cached_placements_.clear();
    placement_ranks_ = ranks();
  }
  step_placements_.clear();
  for (const PlacementSpec& spec : plan.placements) step_placements_.push_back(PlacementOf(spec));
}

const Placement* Rank::PlacementOf(const PlacementSpec& spec) {
  for (const CachedPlacement& cached : cached_placements_) {
    if (cached.spec == spec) return cached.placement.get();
  }
  cached_placements_.push_back(
      {spec, std::make_unique<Placement>(ranks(), spec.stripe_tokens, spec.slot_map)});
  return cached_placements_.back().placement.get();
}

std::byte* Rank::Reserve(std::string_view name, int index, size_t bytes) {
  DeviceBuffer& buffer = buffers_[{std::string(name), index}];
  if (buffer.size() < bytes || buffer.data() == nullptr) {
    // An eighth more than before, so that a prompt that grows step by step seldom moves it.
    const size_t wanted = std::max({bytes, buffer.size() + buffer.size() / 8, kMinBufferBytes});
    buffer = DeviceBuffer();
    const Instant begin = options_.clock->Now();
    absl::StatusOr<DeviceBuffer> taken = device_.Allocate(wanted, name);
    if (absl::IsResourceExhausted(taken.status()) && wanted > bytes) {
      taken = device_.Allocate(bytes, name);
    }
    if (!taken.ok()) {
      reserved_.Update(taken.status());
      return nullptr;
    }
    buffer = *std::move(taken);
    device_.trace().Add({{.kind = OpKind::kAllocate, .bytes = static_cast<int64_t>(buffer.size())},
                         TraceLane::kMemory,
                         begin,
                         options_.clock->Now()});
  }
  return buffer.data();
}

MemoryBytes Rank::Memory() const {
  MemoryBytes out{};
  for (const Device::MemoryUse& use : device_.Memory()) {
    out[static_cast<size_t>(use.pool)] += static_cast<int64_t>(use.bytes);
  }
  return out;
}

TransferPtr StepTransfers::Exchange(Communicator::ExchangeArgs args, Purpose purpose) {
  args.label.kind = OpKind::kExchange;
  args.label.bytes = static_cast<int64_t>(args.send.size());
  args.deadline = rank_.Deadline();
  result_.ring_bytes += args.label.bytes;
  TransferPtr transfer = rank_.comm().StartExchange(std::move(args));
  under_way_.push_back({transfer, purpose == Purpose::kRound ? CommKind::kRing : CommKind::kHome});
  return transfer;
}

TransferPtr StepTransfers::AllGather(Communicator::AllGatherArgs args) {
  args.label.kind = OpKind::kAllGather;
  args.label.bytes = static_cast<int64_t>(args.send.size());
  args.deadline = rank_.Deadline();
  CountGather(args.send.size());
  const Instant before = rank_.options().clock->Now();
  TransferPtr transfer = rank_.comm().StartAllGather(std::move(args));
  host_wait_s_ += Seconds(rank_.options().clock->Now() - before);
  under_way_.push_back({transfer, CommKind::kAllGather});
  return transfer;
}

absl::Status StepTransfers::GatherOnHost(std::span<const std::byte> send,
                                         std::span<std::byte> recv) {
  CountGather(send.size());
  const Instant before = rank_.options().clock->Now();
  absl::Status status = rank_.comm().GatherOnHost(send, recv, rank_.Deadline());
  if (status.ok()) ++result_.comm.rounds[static_cast<size_t>(CommKind::kHost)];
  host_wait_s_ += Seconds(rank_.options().clock->Now() - before);
  return status;
}

void StepTransfers::WaitFor(EventPtr event) {
  rank_.stream().WaitFor(std::move(event), rank_.Deadline());
}

void StepTransfers::CountGather(size_t send_bytes) {
  result_.comm.gather_bytes += static_cast<int64_t>(send_bytes) * (rank_.ranks() - 1);
}

void StepTransfers::Count(const Started& started) {
  const double seconds = Seconds(started.transfer->transfer_time());
  ++result_.comm.rounds[static_cast<size_t>(started.kind)];
  if (started.kind == CommKind::kAllGather) return result_.comm.AddGatherTime(seconds);
  result_.transfer_s += seconds;
  if (started.kind == CommKind::kRing) result_.round_seconds.push_back(seconds);
}

void StepTransfers::Collect() {
  while (!under_way_.empty() && under_way_.front().transfer->done()) {
    Count(under_way_.front());
    under_way_.pop_front();
  }
}

absl::Status StepTransfers::Finish() {
  absl::Status first;
  for (const Started& started : under_way_) {
    absl::Status status = started.transfer->Await(rank_.Deadline());
    if (status.ok()) Count(started);
    first.Update(std::move(status));
  }
  under_way_.clear();
  return first;
}

}  // namespace ringfill
