#include "engine/compute/cuda/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/float_types.h"
#include "engine/compute/cuda/workspace.h"
#include "engine/stream/round_header.h"
#include "kvcache/page_allocator.h"

namespace ringfill {
namespace {

// Weights take at most this part of what scratch leaves of a GPU, so that there is room for KV;
// beyond it layers stay as stored.
constexpr double kMostWeights = 0.6;
// Attention queries, states and residual rows that a step has beside those of its own rows: what
// travels with pass-Q, and an eighth that buffers grow by.
constexpr double kRowCopies = 3.5;

size_t MatrixBytes(const WeightMatrix& w) {
  return static_cast<size_t>(w.rows) * WeightRowBytes(w.type, w.cols);
}
size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t Expanded(const WeightMatrix& w) {
  return static_cast<size_t>(w.rows * w.cols) * sizeof(Bf16);
}

std::string Show(size_t bytes) { return absl::StrCat((bytes + (size_t{1} << 19)) >> 20, " MiB"); }

// What the passes take for the rows of a step, and for replicated tokens.
size_t StepBytes(const ModelConfig& c, const CudaMemoryOptions& options) {
  const int64_t rows = options.chunk_tokens / options.ranks + 2 * options.page_tokens;
  const auto row = static_cast<double>(4 * c.width + 4 * c.rope.rope_dims + 2 * 2 * c.q_width() +
                                       4 * c.heads * (2 + c.head_dim) + 8 * c.kv_width());
  const int64_t token = std::max(int64_t{c.q_width()} + 2 * c.kv_width(),
                                 std::max<int64_t>(c.width, c.heads * (2 + c.head_dim)));
  const auto gathered =
      static_cast<size_t>(kReplicatedTokens * token * (options.ranks + 2)) * sizeof(float);
  const size_t attention = static_cast<size_t>(rows * c.q_width()) * sizeof(Bf16);
  return static_cast<size_t>(kRowCopies * row * static_cast<double>(rows)) + attention + gathered +
         (options.ranks > 1 ? options.gather_bytes : 0);
}

}  // namespace

CudaWeightBytes CudaWeightBytes::Of(const Model& model) {
  CudaWeightBytes out;
  for (const LayerWeights& layer : model.layers()) {
    size_t stored = 0, expanded = 0;
    for (const WeightMatrix* w :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      stored += Aligned(MatrixBytes(*w));
      expanded += Expanded(*w);
    }
    out.stored_layer = std::max(out.stored_layer, stored);
    out.expanded_layer = Aligned(expanded);
  }
  out.embedding = Aligned(MatrixBytes(model.embedding()));
  const bool tied = model.output().data == model.embedding().data;
  out.stored_output = tied ? 0 : Aligned(MatrixBytes(model.output()));
  out.expanded_output = Aligned(Expanded(model.output()));
  out.norms = (2 * model.layers().size() + 1) * static_cast<size_t>(model.config().width) * 4;
  return out;
}

size_t CudaWeightBytes::Total(int layers, const CudaWeightsPlan& plan) const {
  const int places = std::min(layers, plan.expanded_layers);
  const int stored = places == layers ? 0 : layers - (places - 2);
  return static_cast<size_t>(places) * expanded_layer + static_cast<size_t>(stored) * stored_layer +
         embedding + norms + (plan.expanded_output ? expanded_output : stored_output);
}

namespace {

// The plan with most expanded that takes at most `most` bytes, or the smallest.
CudaWeightsPlan PlanWeights(const CudaWeightBytes& bytes, int layers, size_t most,
                            int64_t expanded_bytes) {
  const int least = std::min(2, layers);
  int wanted = layers;
  if (expanded_bytes > 0) {
    wanted = static_cast<int>(
        std::clamp<size_t>(static_cast<size_t>(expanded_bytes) / bytes.expanded_layer,
                           static_cast<size_t>(least), static_cast<size_t>(layers)));
  }
  for (const bool output : {true, false}) {
    for (int n = wanted; n >= least; --n) {
      const CudaWeightsPlan plan{n, output};
      if (bytes.Total(layers, plan) <= most) return plan;
    }
  }
  return {least, false};
}

}  // namespace

absl::StatusOr<CudaMemoryPlan> PlanCudaMemory(const Model& model, const CudaMemoryOptions& o) {
  const ModelConfig& c = model.config();
  const KvGeometry geometry = CudaKvGeometry(c, o.page_tokens);
  const CudaWeightBytes bytes = CudaWeightBytes::Of(model);
  CudaMemoryPlan plan;
  plan.workspace_bytes = CudaWorkspaceBytes(c) + StepBytes(c, o);
  plan.library_bytes = CudaLibraryBytes(o.ranks);
  const size_t fixed = plan.workspace_bytes + plan.library_bytes;
  const size_t after_scratch = o.free_bytes > fixed ? o.free_bytes - fixed : 0;
  const auto most = static_cast<size_t>(kMostWeights * static_cast<double>(after_scratch));
  plan.weights = PlanWeights(bytes, c.layers, most, o.expanded_weight_bytes);
  plan.weight_bytes = bytes.Total(c.layers, plan.weights);
  // Two shards of a layer go round with the pages.
  const size_t page = geometry.PageBytes() + (o.ranks > 1 ? 2 * geometry.LayerBytes() : 0);
  const size_t taken = plan.weight_bytes + fixed;
  const size_t left = o.free_bytes > taken ? o.free_bytes - taken : 0;
  const auto room = static_cast<int64_t>(left / page);
  const auto tokens = [&o](int64_t pages) { return pages * o.page_tokens * o.ranks; };
  if (o.kv_memory_bytes > 0) {
    plan.pages = o.kv_memory_bytes / o.ranks / static_cast<int64_t>(geometry.PageBytes());
  } else {
    plan.pages = static_cast<int64_t>(o.kv_memory_fraction * static_cast<double>(room));
  }
  plan.pages = std::min<int64_t>(plan.pages, std::numeric_limits<PageId>::max() - 1);
  const auto refused = [&](const std::string& what) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", o.device, " has ", Show(o.free_bytes), " free, weights take ",
                     Show(plan.weight_bytes), ", scratch ", Show(plan.workspace_bytes),
                     ", libraries ", Show(plan.library_bytes), ", a KV page of ", o.page_tokens,
                     " tokens ", geometry.PageBytes(), " bytes; the largest context that fits is ",
                     tokens(room), " tokens over ", o.ranks, " ranks"));
  };
  if (room == 0) return refused("the model does not fit");
  if (plan.pages == 0) return refused("kv.memory_bytes is less than one page a rank");
  if (plan.pages > room) return refused("kv.memory_bytes is more than there is");
  if (o.max_context_tokens > tokens(plan.pages)) {
    return refused(absl::StrCat("model.max_context_tokens is ", o.max_context_tokens,
                                " and the KV pages hold ", tokens(plan.pages)));
  }
  return plan;
}

}  // namespace ringfill
