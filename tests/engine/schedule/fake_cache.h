// Executes plans without computing: tracks which token's KV each page of each rank holds, and
// checks that no token is computed before all that it sees is there, and that nobody reads a page
// that another has overwritten.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/layout/placement.h"
#include "engine/schedule/step_plan.h"

namespace ringfill {

// What a slot of a page holds: a position, and a hash of its token and all before it, so that
// sequences with the same beginning can read each other's pages.
struct HeldToken {
  int64_t position = -1;
  uint64_t prefix = 0;
  friend bool operator==(const HeldToken&, const HeldToken&) = default;
};

class FakeCache {
 public:
  FakeCache(int ranks, int64_t pages, int page_tokens);

  // Sequences must be known before they are planned. Their tokens only ever grow.
  void Know(SequenceId id, std::span<const TokenId> tokens);
  void Append(SequenceId id, TokenId token);
  void Forget(SequenceId id) { prefix_.erase(id); }

  // Checks and computes a whole step. Failures are gtest failures.
  void Execute(const StepPlan& plan);
  // A step that fails on the way: some of the positions that it computes are garbage.
  void ExecuteTorn(const StepPlan& plan, uint32_t seed);
  void Regroup(std::span<const int> from);

  int ranks() const { return static_cast<int>(memory_.size()); }

 private:
  using Memory = std::vector<HeldToken>;  // [pages * page_tokens]

  HeldToken& At(const BlockTable& pages, const Placement& placement, int64_t position);
  uint64_t PrefixOf(SequenceId id, int64_t position) const;
  void CheckTables(const StepPlan& plan) const;
  void CheckSeen(SequenceId id, int64_t position, const BlockTable& pages,
                 const Placement& placement);
  void Store(SequenceId id, int64_t position, const BlockTable& pages, const Placement& placement);

  const int64_t pages_;
  const int page_tokens_;
  std::vector<std::unique_ptr<Memory>> memory_;         // [ranks]
  std::map<SequenceId, std::vector<uint64_t>> prefix_;  // [tokens]
};

}  // namespace ringfill
