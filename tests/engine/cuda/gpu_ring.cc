#include "tests/engine/cuda/gpu_ring.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "engine/worker/cuda_backend.h"

namespace ringfill {

std::vector<GpuCase> GpuCases(int beside) {
  std::vector<GpuCase> cases;
  const std::vector<int> counts = GpuCounts();
  for (const int count : counts) cases.emplace_back(count, false);
  cases.emplace_back(std::min(beside, counts.back()), true);
  return cases;
}

std::string GpuCaseName(const testing::TestParamInfo<GpuCase>& info) {
  const auto& [gpus, library] = info.param;
  return absl::StrCat(gpus, "gpus_", library ? "library" : "kernels");
}

RingHarnessOptions GpuRing(int ranks) {
  RingHarnessOptions options;
  options.ranks = ranks;
  options.make_backend = [](std::shared_ptr<const Model> model, const RingHarnessOptions& of) {
    const auto page_bytes = static_cast<int64_t>(model->config().layers) * 2 *
                            model->config().kv_width() * of.model.page_tokens * 2;
    auto made = MakeCudaBackend(std::move(model),
                                {.ranks = of.ranks,
                                 .page_tokens = of.model.page_tokens,
                                 .kv_memory_bytes = of.pages_per_rank * of.ranks * page_bytes,
                                 .gather_bytes = size_t{64} << 20});
    if (!made.ok()) {
      std::fprintf(stderr, "no GPUs: %s\n", made.status().ToString().c_str());
      std::abort();
    }
    return std::move(made->backend);
  };
  return options;
}

TinyModelOptions GpuTinyModel() {
  TinyModelOptions options;
  options.heads = 4;
  options.kv_heads = 2;
  options.head_dim = 64;
  return options;
}

}  // namespace ringfill
