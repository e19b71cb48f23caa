#include "tests/engine/schedule/random_plan.h"

#include "engine/layout/placement.h"

namespace ringfill {
namespace {

class Maker {
 public:
  explicit Maker(std::mt19937& random) : random_(random) {}

  StepPlan Make() {
    StepPlan plan;
    plan.epoch = Below(1000);
    plan.step = random_();
    plan.ranks = kPlanLimits.ranks;
    const int64_t sequences = 1 + Below(8);
    const int64_t placements = 1 + Below(sequences);
    for (int64_t i = 0; i < placements; ++i) {
      PlacementSpec spec = {static_cast<int>(16 * (1 + Below(4))), {}};
      for (int64_t slots = 1 + Below(12); slots > 0; --slots) {
        spec.slot_map.push_back(static_cast<int>(Below(plan.ranks)));
      }
      plan.placements.push_back(spec);
    }
    for (int64_t i = 0; i < sequences; ++i) {
      const auto placement = static_cast<int>(Below(placements));
      if (Below(2) == 0) {
        AddChunk(placement, plan);
      } else {
        const int64_t position = Below(500);
        plan.decodes.push_back(
            {++sequence_, position, Token(), placement,
             Table(plan.placements[static_cast<size_t>(placement)], position + 1),
             Below(2) * Below(position + 1)});
      }
    }
    if (Below(3) == 0) plan.freed = {{1, 2}, {}, {3}};
    return plan;
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  TokenId Token() { return static_cast<TokenId>(Below(kPlanLimits.vocab)); }

  void AddChunk(int placement, StepPlan& plan) {
    PrefillChunk chunk;
    chunk.sequence = ++sequence_;
    int64_t at = Below(300);
    for (int64_t spans = 1 + Below(4); spans > 0; --spans) {
      const int64_t end = at + 1 + Below(50);
      chunk.spans.push_back({at, end});
      for (; at < end; ++at) chunk.tokens.push_back(Token());
      at += 1 + Below(60);
    }
    if (Below(2) == 0) AddDocuments(chunk);
    chunk.placement = placement;
    chunk.pages = Table(plan.placements[static_cast<size_t>(placement)], chunk.end());
    chunk.strategy = static_cast<RingStrategy>(Below(kRingStrategies));
    chunk.wants_logits = Below(2) == 0;
    chunk.score = Below(2) == 0;
    chunk.mode = static_cast<TokenMode>(Below(chunk.score ? 2 : kTokenModes));
    if (chunk.score) {
      chunk.targets.assign(chunk.tokens.size() - static_cast<size_t>(Below(2)), Token());
    }
    plan.chunks.push_back(std::move(chunk));
  }

  void AddDocuments(PrefillChunk& chunk) {
    for (int64_t start = Below(300);
         start < chunk.end() && chunk.document_starts.size() < chunk.tokens.size();
         start += 1 + Below(40)) {
      chunk.document_starts.push_back(start);
    }
  }

  BlockTable Table(const PlacementSpec& spec, int64_t tokens) {
    const Placement placement(kPlanLimits.ranks, spec);
    BlockTable table(static_cast<size_t>(kPlanLimits.ranks));
    for (size_t r = 0; r < table.size(); ++r) {
      const int64_t local = placement.TokensBefore(static_cast<int>(r), tokens);
      for (int64_t i = 0; i * kPlanLimits.page_tokens < local; ++i)
        table[r].push_back(next_page_++);
    }
    return table;
  }

  std::mt19937& random_;
  SequenceId sequence_ = 0;
  PageId next_page_ = 0;
};

}  // namespace

StepPlan RandomPlan(std::mt19937& random) { return Maker(random).Make(); }

}  // namespace ringfill
