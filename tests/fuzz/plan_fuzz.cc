// Any bytes as a step plan: an error, or a plan that encodes to the same bytes. When it passes the
// check, every page that it names is looked at, so that the sanitizer sees any out of range.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/layout/placement.h"
#include "engine/schedule/documents.h"
#include "engine/schedule/plan_check.h"
#include "engine/schedule/plan_codec.h"

namespace ringfill {
namespace {

constexpr PlanLimits kLimits = {
    .ranks = 3, .page_tokens = 16, .pages_per_rank = 500, .vocab = 5000, .max_positions = 4000};

// [ranks][pages][page_tokens] how often each place was written.
using Memory = std::vector<std::vector<int>>;

void Touch(Memory& memory, const StepPlan& plan, int index, const BlockTable& pages, Span span) {
  const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(index)]);
  for (int64_t p = span.begin; p < span.end; ++p) {
    const auto rank = static_cast<size_t>(placement.Home(p));
    const int64_t local = placement.LocalToken(p);
    const PageId page = pages[rank][static_cast<size_t>(local / kLimits.page_tokens)];
    int& writes = memory[rank][page * static_cast<size_t>(kLimits.page_tokens) +
                               static_cast<size_t>(local % kLimits.page_tokens)];
    RF_CHECK(++writes == 1);
  }
}

void Execute(const StepPlan& plan) {
  Memory memory(static_cast<size_t>(kLimits.ranks),
                std::vector<int>(static_cast<size_t>(kLimits.pages_per_rank) *
                                 static_cast<size_t>(kLimits.page_tokens)));
  std::vector<int> vocabulary(static_cast<size_t>(kLimits.vocab));
  for (const PrefillChunk& chunk : plan.chunks) {
    for (const Span& span : chunk.spans) {
      Touch(memory, plan, chunk.placement, chunk.pages, span);
      for (int64_t p = span.begin; p < span.end; ++p) {
        const Span document = DocumentAt(chunk.document_starts, p);
        RF_CHECK(document.begin >= 0 && document.begin <= p && p < document.end);
      }
    }
    for (const TokenId token : chunk.tokens) ++vocabulary[static_cast<size_t>(token)];
    for (const TokenId token : chunk.targets) ++vocabulary[static_cast<size_t>(token)];
  }
  for (const DecodeToken& decode : plan.decodes) {
    Touch(memory, plan, decode.placement, decode.pages, {decode.position, decode.position + 1});
    ++vocabulary[static_cast<size_t>(decode.token)];
    RF_CHECK(decode.document_start >= 0 && decode.document_start <= decode.position);
  }
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<StepPlan> plan = DecodePlan(bytes);
  if (!plan.ok()) {
    RF_CHECK(!plan.status().message().empty());
    return 0;
  }
  RF_CHECK(EncodePlan(*plan) == bytes);
  if (CheckPlan(*plan, kLimits).ok()) Execute(*plan);
  return 0;
}
