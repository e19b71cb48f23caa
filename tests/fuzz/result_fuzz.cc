// Any bytes as a rank's result: an error, or a result that encodes to the same bytes. When it fits
// the plan, the leader's way through it is walked.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/worker/result_codec.h"

namespace ringfill {
namespace {

constexpr int64_t kVocab = 20;

// Two chunks, one of them scored, and a decode.
StepPlan MakePlan() {
  StepPlan plan;
  plan.chunks.resize(2);
  plan.chunks[0].spans = {{0, 30}};
  plan.chunks[0].score = true;
  plan.chunks[1].spans = {{5, 9}};
  plan.chunks[1].wants_logits = true;
  plan.decodes.resize(1);
  return plan;
}

void Use(const RankStepResult& result, const StepPlan& plan) {
  std::vector<int> chunks(plan.chunks.size());
  std::vector<int> entries(plan.chunks.size() + plan.decodes.size());
  for (const ScoredToken& score : result.scores) ++chunks[static_cast<size_t>(score.chunk)];
  for (const ValueFault& fault : result.faults) ++entries[static_cast<size_t>(fault.entry)];
  if (!result.status.ok()) return;
  const bool stopped = (result.stopped_mask >> 1) & 1;
  std::vector<float> row(static_cast<size_t>(kVocab));
  size_t next = 0;
  for (int r = 0; r < (stopped ? 1 : 2); ++r) {
    for (int64_t v = result.vocab_begin; v < result.vocab_end; ++v) {
      row[static_cast<size_t>(v)] = result.logits[next++];
    }
  }
  RF_CHECK(next == result.logits.size());
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  static const StepPlan* const plan = new StepPlan(MakePlan());
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<RankStepResult> result = DecodeResult(bytes);
  if (!result.ok()) {
    RF_CHECK(!result.status().message().empty());
    return 0;
  }
  RF_CHECK(EncodeResult(*result) == bytes);
  if (CheckResult(*result, *plan, kVocab).ok()) Use(*result, *plan);
  return 0;
}
