// Attention as cuDNN documents it, computed on the CPU from the addresses that a call gives, when
// the stream comes to it. What cuDNN leaves open is done in the way that shows most: rows beyond an
// entry's are filled with NaN, and pages are read to the end of the last tile of keys, where what
// is masked counts with a probability of zero, which does not silence a NaN.
#include "engine/compute/cuda/fused_attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/float_types.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/streams/runtime.h"
#include "tests/engine/compute/cuda/emulated_fused/fused_emulation.h"

namespace ringfill {
namespace cuda_emulation {
namespace {

constexpr int kTileKeys = 128;  // of cuDNN's kernels
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kWorkspaceBytes = 4096;

struct State {
  std::atomic<bool> there{false}, wrong{false};
  std::atomic<int64_t> least_keys{16};
  std::atomic<int64_t> calls{0}, rows{0}, pairs{0};
};
State& Global() {
  static State state;
  return state;
}

// A call on its way through the stream.
class Call {
 public:
  Call(FusedAttentionOptions options, const FusedCall& call, int device)
      : o_(std::move(options)), call_(call), device_(device) {}

  Outcome Run() {
    const auto entries = static_cast<size_t>(o_.entries);
    const size_t rows = entries * static_cast<size_t>(o_.kv_heads) * gpu::kFusedRows;
    const size_t row_bytes = static_cast<size_t>(o_.head_dim) * sizeof(Bf16);
    Need(call_.q, rows * row_bytes, "q");
    Need(call_.out, rows * row_bytes, "out");
    Need(call_.log_sum_exp, rows * sizeof(float), "the statistics");
    Need(call_.rows, entries * sizeof(int32_t), "the lengths of q");
    Need(call_.keys, entries * sizeof(int32_t), "the lengths of keys");
    Need(call_.pages, entries * static_cast<size_t>(o_.table_pages) * sizeof(int32_t),
         "the page tables");
    Need(call_.workspace, kWorkspaceBytes, "the workspace");
    if (!outcome_.report.empty()) return outcome_;
    std::memset(call_.workspace, 0xff, kWorkspaceBytes);
    for (int e = 0; e < o_.entries && outcome_.report.empty(); ++e) {
      Global().rows += call_.rows[e];
      Global().pairs += int64_t{call_.rows[e]} * call_.keys[e];
      for (int head = 0; head < o_.kv_heads && outcome_.report.empty(); ++head) Entry(e, head);
    }
    return outcome_;
  }

 private:
  void Fail(const std::string& why) {
    if (outcome_.report.empty()) {
      outcome_ = {cudaErrorIllegalAddress, "attention of a library: " + why};
    }
  }
  void Need(const void* at, size_t bytes, const std::string& what) {
    const DeviceMemory& memory = DeviceMemory::Get();
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0) Fail(what + " is not aligned to 16 bytes");
    if (!memory.Holds(device_, at, bytes)) {
      Fail(absl::StrCat(what, " takes ", bytes, " bytes ", memory.Problem(device_, at, bytes)));
    }
  }

  // The row of a key; null when it cannot be read.
  const Bf16* Row(int e, int head, int64_t key, int64_t block_offset) {
    const int64_t page = call_.pages[e * o_.table_pages + key / o_.page_tokens];
    if (page < 0 || page >= o_.page_limit) {
      Fail(absl::StrCat("entry ", e, " has page ", page, " for key ", key));
      return nullptr;
    }
    const size_t row_bytes = static_cast<size_t>(o_.head_dim) * sizeof(Bf16);
    const size_t block = static_cast<size_t>(o_.page_tokens) * row_bytes;
    const std::byte* const from = call_.kv.base + page * call_.kv.page_stride + block_offset +
                                  static_cast<size_t>(head) * block;
    Need(from, block, absl::StrCat("page ", page));
    if (!outcome_.report.empty()) return nullptr;
    return reinterpret_cast<const Bf16*>(from) + key % o_.page_tokens * o_.head_dim;
  }

  void Entry(int e, int head) {
    const int64_t rows = call_.rows[e], keys = call_.keys[e];
    const int64_t most_keys = o_.table_pages * o_.page_tokens;
    if (rows < 1 || rows > gpu::kFusedRows)
      return Fail(absl::StrCat("an entry of ", rows, " rows"));
    if (keys < 1 || keys > most_keys) return Fail(absl::StrCat("an entry of ", keys, " keys"));
    const int64_t end = std::min(most_keys, (keys + kTileKeys - 1) / kTileKeys * kTileKeys);
    const int dim = o_.head_dim;
    std::vector<float> k, v;
    for (int64_t key = 0; key < end; ++key) {
      const Bf16* const k_row = Row(e, head, key, call_.kv.k_offset);
      const Bf16* const v_row = k_row == nullptr ? nullptr : Row(e, head, key, call_.kv.v_offset);
      if (v_row == nullptr) return;
      for (int d = 0; d < dim; ++d) {
        k.push_back(ToFloat(k_row[d]));
        v.push_back(ToFloat(v_row[d]));
      }
    }
    const int64_t first = (int64_t{e} * o_.kv_heads + head) * gpu::kFusedRows;
    const auto* const q = static_cast<const Bf16*>(call_.q) + first * dim;
    auto* const out = static_cast<Bf16*>(call_.out) + first * dim;
    for (int64_t row = 0; row < gpu::kFusedRows; ++row) {
      if (row < rows) {
        call_.log_sum_exp[first + row] = Attend(q + row * dim, k, v, keys, end, out + row * dim);
        continue;
      }
      call_.log_sum_exp[first + row] = kNan;
      std::fill_n(out + row * dim, dim, ToBf16(kNan));
    }
  }

  float Attend(const Bf16* q, const std::vector<float>& k, const std::vector<float>& v,
               int64_t keys, int64_t end, Bf16* out) const {
    const int dim = o_.head_dim;
    std::vector<double> scores(static_cast<size_t>(end));
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t key = 0; key < keys; ++key) {
      double score = 0;
      for (int d = 0; d < dim; ++d) {
        score += double{ToFloat(q[d])} * double{k[static_cast<size_t>(key * dim + d)]};
      }
      // The scale turns the base of q's scores into cuDNN's.
      scores[static_cast<size_t>(key)] = score * std::log(2.0);
      max = std::max(max, scores[static_cast<size_t>(key)]);
    }
    double sum = 0;
    std::vector<double> acc(static_cast<size_t>(dim));
    for (int64_t key = 0; key < end; ++key) {
      const double p = key < keys ? std::exp(scores[static_cast<size_t>(key)] - max) : 0.0;
      sum += p;
      for (int d = 0; d < dim; ++d) {
        acc[static_cast<size_t>(d)] += p * double{v[static_cast<size_t>(key * dim + d)]};
      }
    }
    for (int d = 0; d < dim; ++d) {
      out[d] = ToBf16(static_cast<float>(acc[static_cast<size_t>(d)] / sum));
    }
    const double units = Global().wrong ? std::log(2.0) : 1.0;
    return static_cast<float>((max + std::log(sum)) / units);
  }

  const FusedAttentionOptions o_;
  const FusedCall call_;
  const int device_;
  Outcome outcome_;
};

class EmulatedAttention final : public FusedAttention {
 public:
  EmulatedAttention(int device, FusedAttentionOptions options)
      : device_(device), options_(std::move(options)) {}

  std::string name() const override { return "an emulated library"; }
  int64_t least_keys() const override { return Global().least_keys; }
  size_t workspace_bytes() const override { return kWorkspaceBytes; }

  absl::Status Run(const FusedCall& call, cudaStream_t stream) override {
    const std::vector<int64_t>& strides = options_.page_strides;
    if (std::find(strides.begin(), strides.end(), call.kv.page_stride) == strides.end()) {
      return absl::InternalError(absl::StrCat("pages ", call.kv.page_stride, " bytes apart"));
    }
    if (call.kv.page_stride % 16 != 0 || call.kv.k_offset % 16 != 0 || call.kv.v_offset % 16 != 0 ||
        reinterpret_cast<uintptr_t>(call.kv.base) % 16 != 0 ||
        call.kv.page_tokens != options_.page_tokens) {
      return absl::InternalError("pages of another kind, or not aligned to 16 bytes");
    }
    if (Runtime::Get().DeviceOfStream(stream) != device_) {
      return absl::InternalError("the stream is of another device");
    }
    ++Global().calls;
    const cudaError_t error = Runtime::Get().Enqueue(
        stream,
        MakeFunctionTask("attention of a library", [options = options_, call, device = device_] {
          return Call(options, call, device).Run();
        }));
    return error == cudaSuccess ? absl::OkStatus() : absl::InternalError("cannot queue");
  }

 private:
  const int device_;
  const FusedAttentionOptions options_;
};

}  // namespace

void SetFused(const FusedOptions& options) {
  Global().there = options.there;
  Global().wrong = options.wrong;
  Global().least_keys = options.least_keys;
  Global().calls = Global().rows = Global().pairs = 0;
}

FusedCounters GetFusedCounters() { return {Global().calls, Global().rows, Global().pairs}; }

}  // namespace cuda_emulation

absl::StatusOr<std::unique_ptr<FusedAttention>> MakeFusedAttention(
    int device, const FusedAttentionOptions& options) {
  if (!cuda_emulation::Global().there)
    return absl::UnimplementedError("the tests have turned it off");
  // As cuDNN refuses them.
  if (options.head_dim % 8 != 0 || options.head_dim > 256) {
    return absl::UnimplementedError("the head size is not a multiple of 8 up to 256");
  }
  if (!std::has_single_bit(static_cast<unsigned>(options.page_tokens))) {
    return absl::UnimplementedError("page_tokens is not a power of two");
  }
  return std::make_unique<cuda_emulation::EmulatedAttention>(device, options);
}

}  // namespace ringfill
