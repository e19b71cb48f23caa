// Moves everything to another ring: Scheduler::Regroup and its parts.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/schedule/scheduler.h"

namespace ringfill {
namespace {

bool IsIdentity(std::span<const int> from) {
  for (size_t r = 0; r < from.size(); ++r) {
    if (from[r] != static_cast<int>(r)) return false;
  }
  return true;
}

}  // namespace

Regrouped Scheduler::Regroup(std::span<const int> from, std::vector<int> slot_map) {
  RF_CHECK(!from.empty() && unfit_.empty());
  starved_.clear();
  Regrouped out;
  if (IsIdentity(from) && static_cast<int>(from.size()) == ranks() && slot_map == slot_map_) {
    return out;
  }
  std::vector<std::unique_ptr<PageAllocator>> old = std::move(allocators_);
  allocators_.clear();
  for (const int was : from) {
    RF_CHECK(was < static_cast<int>(old.size()));
    allocators_.push_back(was < 0 ? NewAllocator() : std::move(old[static_cast<size_t>(was)]));
    RF_CHECK(allocators_.back() != nullptr);
  }
  slot_map_ = std::move(slot_map);
  {
    MutexLock lock(&ring_mutex_);
    ring_ = {slot_map_, ranks()};
  }
  const auto move = [&](Sequence& sequence) {
    const SpanSet lost = sequence.MoveTo(PlacementFor(sequence.prompt_tokens()), from, allocators_);
    if (!lost.empty()) out.lost.push_back({sequence.id(), lost.spans()});
  };
  for (auto& [id, sequence] : running_) move(sequence);
  for (Sequence& sequence : queue_) move(sequence);
  FitRunning();
  out.requeued = Requeue();
  for (Sequence& sequence : queue_) {
    if (CheckPool(sequence.placement(), AdmissionTokens(sequence)).ok()) continue;
    sequence.DropPages();
    unfit_.insert(sequence.id());
  }
  out.unfit.assign(unfit_.begin(), unfit_.end());
  return out;
}

void Scheduler::FitRunning() {
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    Sequence& sequence = it->second;
    if (unfit_.contains(it->first)) continue;
    const int64_t tokens = sequence.reserved_tokens();
    if (!CheckPool(sequence.placement(), tokens).ok()) {
      sequence.DropPages();
      unfit_.insert(it->first);
      continue;
    }
    for (size_t i = queue_.size(); !sequence.ExtendTo(tokens).ok() && i-- > 0;) {
      queue_[i].DropPages();
    }
    // The youngest make room for the older.
    for (auto last = running_.rbegin(); !sequence.ExtendTo(tokens).ok(); ++last) {
      RF_CHECK(last != running_.rend());
      last->second.LosePages();
      if (last->first == it->first) break;
    }
  }
}

std::vector<SequenceId> Scheduler::Requeue() {
  std::vector<SequenceId> requeued;
  // Only the youngest have lost all, so the queue stays in order of arrival.
  while (!running_.empty() && running_.rbegin()->second.reserved_tokens() == 0) {
    const auto last = std::prev(running_.end());
    if (unfit_.contains(last->first)) break;
    requeued.insert(requeued.begin(), last->first);
    queue_.push_front(std::move(last->second));
    running_.erase(last);
  }
  return requeued;
}

}  // namespace ringfill
