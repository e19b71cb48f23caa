// Rates of single operations on a GPU: attention over paged KV, and products. One JSON object a
// line, for tools/gpu_check.sh.
//
//   gpu_bench [--device 0] [--seconds 0.2]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/check.h"
#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/cuda_memory.h"
#include "engine/compute/cuda/kernels/attention.h"
#include "engine/compute/cuda/kernels/attention_work.h"
#include "engine/compute/cuda/products.h"

namespace ringfill {
namespace {

// The attention of an 8B Llama: 32 heads over 8 KV heads.
constexpr int kHeadDim = 128, kHeads = 32, kKvHeads = 8, kGroup = kHeads / kKvHeads;
constexpr int kPageTokens = 128;

struct Options {
  int device = 0;
  double seconds = 0.2;  // of each measurement
};

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Make(const Options& options) {
    RF_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                        CudaStream::Make(options.device, nullptr));
    auto bench = std::make_unique<Bench>(options, std::move(stream));
    RF_ASSIGN_OR_RETURN(bench->products_, MakeCublasProducts(bench->memory_));
    RF_ASSIGN_OR_RETURN(bench->gpu_, bench->Describe());
    return bench;
  }
  Bench(const Options& options, std::unique_ptr<CudaStream> stream)
      : options_(options), stream_(std::move(stream)), memory_(*stream_) {}

  absl::Status Run() {
    for (const int64_t keys : {4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10}) {
      RF_RETURN_IF_ERROR(Prefill(keys));
    }
    for (const int64_t keys : {4 << 10, 32 << 10, 128 << 10}) RF_RETURN_IF_ERROR(Decode(keys));
    for (const int64_t rows : {1, 16, 256, 2048}) RF_RETURN_IF_ERROR(Multiply(rows, 14336, 4096));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<CudaGpu> Describe() const {
    RF_ASSIGN_OR_RETURN(const std::vector<CudaGpu> gpus, ListGpus());
    return gpus[static_cast<size_t>(options_.device)];
  }

  // Zeros.
  absl::StatusOr<DeviceBuffer> Buffer(size_t bytes) {
    RF_ASSIGN_OR_RETURN(DeviceBuffer buffer, memory_.Allocate(bytes, "bench"));
    RF_RETURN_IF_CUDA_ERROR(options_.device,
                            cudaMemsetAsync(buffer.data(), 0, bytes, stream_->get()));
    return buffer;
  }
  template <typename List>
  absl::StatusOr<DeviceBuffer> Upload(const List& list) {
    const size_t bytes = list.size() * sizeof(list[0]);
    RF_ASSIGN_OR_RETURN(DeviceBuffer buffer, Buffer(std::max<size_t>(bytes, 1)));
    RF_RETURN_IF_CUDA_ERROR(
        options_.device,
        cudaMemcpyAsync(buffer.data(), list.data(), bytes, cudaMemcpyHostToDevice, stream_->get()));
    RF_RETURN_IF_CUDA_ERROR(options_.device, cudaStreamSynchronize(stream_->get()));
    return buffer;
  }

  // Milliseconds of one `launch`, after one that does not count.
  template <typename Launch>
  absl::StatusOr<double> Time(const Launch& launch) {
    RF_RETURN_IF_ERROR(launch());
    RF_RETURN_IF_CUDA_ERROR(options_.device, cudaStreamSynchronize(stream_->get()));
    RF_ASSIGN_OR_RETURN(const CudaEventHandle begin,
                        CudaEventHandle::Make(CudaEventHandle::Timing::kOn));
    RF_ASSIGN_OR_RETURN(const CudaEventHandle end,
                        CudaEventHandle::Make(CudaEventHandle::Timing::kOn));
    for (int count = 1;; count *= 2) {
      RF_RETURN_IF_CUDA_ERROR(options_.device, cudaEventRecord(begin.get(), stream_->get()));
      for (int i = 0; i < count; ++i) RF_RETURN_IF_ERROR(launch());
      RF_RETURN_IF_CUDA_ERROR(options_.device, cudaEventRecord(end.get(), stream_->get()));
      RF_RETURN_IF_CUDA_ERROR(options_.device, cudaStreamSynchronize(stream_->get()));
      float ms = 0;
      RF_RETURN_IF_CUDA_ERROR(options_.device, cudaEventElapsedTime(&ms, begin.get(), end.get()));
      if (ms >= 1e3 * options_.seconds) return ms / count;
    }
  }

  struct Kv {
    DeviceBuffer pages, table, runs, visible, q, state;
    gpu::AttentionArgs args{};
  };
  // `runs` runs of `keys` keys with `tokens` queries each, the last of which sees all keys.
  absl::StatusOr<Kv> MakeKv(int64_t runs, int64_t keys, int64_t tokens) {
    const int64_t pages = keys / kPageTokens, all = runs * tokens;
    const int64_t block = int64_t{kPageTokens} * kHeadDim * 2;
    std::vector<uint32_t> table;
    std::vector<gpu::KvRunView> views;
    std::vector<int64_t> visible;
    for (int64_t run = 0; run < runs; ++run) {
      views.push_back({static_cast<int64_t>(table.size()), 0});
      // In no order, as pools give them.
      for (int64_t p = 0; p < pages; ++p) {
        table.push_back(static_cast<uint32_t>(run * pages + (p * 7 + run) % pages));
      }
      for (int64_t t = 0; t < tokens; ++t) visible.push_back(keys - tokens + t + 1);
    }
    Kv kv;
    const int64_t page = 2 * kKvHeads * block;
    RF_ASSIGN_OR_RETURN(kv.pages, Buffer(static_cast<size_t>(runs * pages * page)));
    RF_ASSIGN_OR_RETURN(kv.table, Upload(table));
    RF_ASSIGN_OR_RETURN(kv.runs, Upload(views));
    RF_ASSIGN_OR_RETURN(kv.visible, Upload(visible));
    RF_ASSIGN_OR_RETURN(kv.q, Buffer(static_cast<size_t>(all * kHeads * kHeadDim * 2)));
    RF_ASSIGN_OR_RETURN(kv.state, Buffer(static_cast<size_t>(all * kHeads * (kHeadDim + 2) * 4)));
    auto* const state = reinterpret_cast<float*>(kv.state.data());
    const int64_t rows = all * kHeads;
    kv.args = {.type = gpu::Element::kBF16,
               .head_dim = kHeadDim,
               .kv_heads = kKvHeads,
               .group = kGroup,
               .tokens = all,
               .q = kv.q.data(),
               .state = {state, state + rows, state + 2 * rows},
               .clear = true,
               .kv = {kv.pages.data(), page, 0, kKvHeads * block, kPageTokens},
               .page_table = reinterpret_cast<const uint32_t*>(kv.table.data()),
               .runs = reinterpret_cast<const gpu::KvRunView*>(kv.runs.data()),
               .visible = reinterpret_cast<const int64_t*>(kv.visible.data()),
               .begin = nullptr};
    return kv;
  }

  // A chunk of 2,048 tokens at the end of a prompt.
  absl::Status Prefill(int64_t keys) {
    constexpr int64_t kTokens = 2048;
    RF_ASSIGN_OR_RETURN(const Kv kv, MakeKv(1, keys, kTokens));
    const auto plan = gpu::PlanPrefill(
        {{.token = 0, .tokens = kTokens, .run = 0, .bit = 0, .visible = keys}}, kGroup);
    RF_ASSIGN_OR_RETURN(const DeviceBuffer work, Upload(plan));
    const gpu::PrefillArgs args{.attention = kv.args,
                                .work = reinterpret_cast<const gpu::PrefillWork*>(work.data()),
                                .works = static_cast<int>(plan.size()),
                                .nonfinite = nullptr};
    RF_ASSIGN_OR_RETURN(const double ms, Time([&] {
                          return LaunchStatus(gpu::AttendPrefill(args, stream_->get()),
                                              "AttendPrefill", options_.device);
                        }));
    const double pairs = static_cast<double>(kTokens) *
                         (static_cast<double>(keys) - (static_cast<double>(kTokens) - 1) / 2);
    Report("prefill attention", keys, kTokens, ms, 4e-9 * pairs * kHeads * kHeadDim / ms,
           "TFLOP/s");
    return absl::OkStatus();
  }

  // 16 prompts that decode.
  absl::Status Decode(int64_t keys) {
    constexpr int64_t kRuns = 16;
    RF_ASSIGN_OR_RETURN(const Kv kv, MakeKv(kRuns, keys, 1));
    std::vector<gpu::TokenSpan> spans;
    for (int32_t run = 0; run < kRuns; ++run) {
      spans.push_back({.token = run, .tokens = 1, .run = run, .bit = 0, .visible = keys});
    }
    const gpu::DecodePlan plan = gpu::PlanDecode(spans, {kGroup, kKvHeads, 2 * gpu_.processors});
    RF_ASSIGN_OR_RETURN(const DeviceBuffer work, Upload(plan.work));
    RF_ASSIGN_OR_RETURN(const DeviceBuffer merge, Upload(plan.merge));
    const int64_t rows = plan.parts * kKvHeads * gpu::kDecodeRows;
    RF_ASSIGN_OR_RETURN(
        const DeviceBuffer parts,
        Buffer(std::max<size_t>(static_cast<size_t>(rows * (kHeadDim + 2) * 4), 1)));
    auto* const part = reinterpret_cast<float*>(parts.data());
    const gpu::DecodeArgs args{.attention = kv.args,
                               .work = reinterpret_cast<const gpu::DecodeWork*>(work.data()),
                               .works = static_cast<int>(plan.work.size()),
                               .parts = {part, part + rows, part + 2 * rows},
                               .merge = reinterpret_cast<const gpu::MergeWork*>(merge.data()),
                               .merges = static_cast<int>(plan.merge.size())};
    RF_ASSIGN_OR_RETURN(const double ms, Time([&] {
                          return LaunchStatus(gpu::AttendDecode(args, stream_->get()),
                                              "AttendDecode", options_.device);
                        }));
    const double bytes = static_cast<double>(kRuns * keys) * 2 * kKvHeads * kHeadDim * 2;
    Report("decode attention", keys, kRuns, ms, 1e-6 * bytes / ms, "GB/s");
    return absl::OkStatus();
  }

  absl::Status Multiply(int64_t rows, int64_t n, int64_t k) {
    RF_ASSIGN_OR_RETURN(const DeviceBuffer w, Buffer(static_cast<size_t>(n * k * 2)));
    RF_ASSIGN_OR_RETURN(const DeviceBuffer x, Buffer(static_cast<size_t>(rows * k * 2)));
    RF_ASSIGN_OR_RETURN(const DeviceBuffer y, Buffer(static_cast<size_t>(rows * n * 4)));
    const Product product{.w = w.data(),
                          .ldw = k,
                          .x = x.data(),
                          .ldx = k,
                          .rows = rows,
                          .n = n,
                          .k = k,
                          .y_type = gpu::Element::kF32,
                          .y = y.data(),
                          .ldy = n};
    RF_ASSIGN_OR_RETURN(const double ms,
                        Time([&] { return products_->Run(product, stream_->get()); }));
    Report("product", n * k, rows, ms, 2e-9 * static_cast<double>(rows * n * k) / ms, "TFLOP/s");
    return absl::OkStatus();
  }

  // `size`: keys, or weights of a product.
  void Report(const char* what, int64_t size, int64_t rows, double ms, double rate,
              const char* unit) const {
    std::printf(
        "{\"what\": \"%s\", \"size\": %lld, \"rows\": %lld, \"ms\": %.4f, \"rate\": %.2f, "
        "\"unit\": \"%s\"}\n",
        what, static_cast<long long>(size), static_cast<long long>(rows), ms, rate, unit);
    std::fflush(stdout);
  }

  const Options options_;
  const std::unique_ptr<CudaStream> stream_;
  CudaMemory memory_;
  std::unique_ptr<Products> products_;
  CudaGpu gpu_;
};

absl::Status Run(const Options& options) {
  RF_ASSIGN_OR_RETURN(const std::vector<CudaGpu> gpus, ListGpus());
  if (options.device < 0 || static_cast<size_t>(options.device) >= gpus.size()) {
    return absl::InvalidArgumentError("there is no such GPU");
  }
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(options));
  return bench->Run();
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  ringfill::Options options;
  CLI::App app("Rates of single operations on a GPU.");
  app.add_option("--device", options.device);
  app.add_option("--seconds", options.seconds, "of each measurement");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = ringfill::Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
