#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/launch.h"
#include "tests/cuda_emulation/self_test/matrix_samples.h"

namespace ringfill::emulation_test {
namespace {

using namespace gpu;  // NOLINT: what kernels are written with

constexpr int kMaxStride = 64;

RF_KERNEL void LdMatrixKernel(bool transposed, const uint16_t* matrices, int stride,
                              unsigned* registers) {
  RF_SHARED(unsigned char, tile, 32 * kMaxStride);
  const int lane = LaneId();
  for (int i = 0; i < 8; ++i) {
    reinterpret_cast<uint16_t*>(tile + lane * stride)[i] = matrices[lane * 8 + i];
  }
  SyncWarp();
  unsigned r[4] = {};
  const unsigned char* row = tile + lane * stride;
  transposed ? LdMatrixX4Trans(r, row) : LdMatrixX4(r, row);
  for (int i = 0; i < 4; ++i) registers[lane * 4 + i] = r[i];
}

template <typename T>
RF_KERNEL void MmaKernel(MmaForm form, const unsigned* a, const unsigned* b, float* d) {
  const int lane = LaneId();
  unsigned fa[kMmaDown][4];
  unsigned fb[kMmaAcross][2];
  float fd[kMmaDown][kMmaAcross][4];
  for (int i = 0; i < kMmaDown; ++i) {
    for (int r = 0; r < 4; ++r) fa[i][r] = a[(i * 32 + lane) * 4 + r];
    for (int j = 0; j < kMmaAcross; ++j) {
      for (int r = 0; r < 4; ++r) fd[i][j][r] = d[((i * kMmaAcross + j) * 32 + lane) * 4 + r];
    }
  }
  for (int j = 0; j < kMmaAcross; ++j) {
    for (int r = 0; r < 2; ++r) fb[j][r] = b[(j * 32 + lane) * 2 + r];
  }
  if (form == MmaForm::kGrid) {
    MmaM16N8K16<T>(fd, fa, fb);
  } else {
    for (int i = 0; i < kMmaDown; ++i) {
      if (form == MmaForm::kRow) {
        MmaM16N8K16<T>(fd[i], fa[i], fb);
      } else {
        for (int j = 0; j < kMmaAcross; ++j) MmaM16N8K16<T>(fd[i][j], fa[i], fb[j]);
      }
    }
  }
  for (int i = 0; i < kMmaDown; ++i) {
    for (int j = 0; j < kMmaAcross; ++j) {
      for (int r = 0; r < 4; ++r) d[((i * kMmaAcross + j) * 32 + lane) * 4 + r] = fd[i][j][r];
    }
  }
}

RF_KERNEL void ConversionsKernel(const float* values, int n, uint16_t* narrow, float* wide) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float v = values[i];
  const Bf16 b = Narrow<Bf16>(v);
  const F16 h = Narrow<F16>(v);
  const unsigned pair_b = Pack<Bf16>(v, -v);
  const unsigned pair_h = Pack<F16>(v, -v);
  narrow[i * 4] = b.bits;
  narrow[i * 4 + 1] = h.bits;
  narrow[i * 4 + 2] = static_cast<uint16_t>(pair_b & 0xffff);
  narrow[i * 4 + 3] = static_cast<uint16_t>(pair_h & 0xffff);
  wide[i * 4] = Widen(b);
  wide[i * 4 + 1] = Widen(h);
  wide[i * 4 + 2] = Widen(Bf16{static_cast<uint16_t>(pair_b >> 16)});
  wide[i * 4 + 3] = Widen(F16{static_cast<uint16_t>(pair_h >> 16)});
}

RF_KERNEL void FunctionsKernel(const float* values, int n, float* results) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float v = values[i];
  results[i * 2] = Exp2(v);
  results[i * 2 + 1] = IsFinite(v) ? 1.0f : 0.0f;
}

unsigned Blocks(int n) { return (static_cast<unsigned>(n) + 127) / 128; }

}  // namespace

cudaError_t RunLdMatrix(bool transposed, const uint16_t* matrices, int stride,
                        unsigned* registers) {
  return Launch(LdMatrixKernel, 1, 32, 0, nullptr, transposed, matrices, stride, registers);
}

cudaError_t RunMma(bool is_bf16, MmaForm form, const unsigned* a, const unsigned* b, float* d) {
  if (is_bf16) return Launch(MmaKernel<Bf16>, 1, 32, 0, nullptr, form, a, b, d);
  return Launch(MmaKernel<F16>, 1, 32, 0, nullptr, form, a, b, d);
}

cudaError_t RunConversions(const float* values, int n, uint16_t* narrow, float* wide) {
  return Launch(ConversionsKernel, Blocks(n), 128, 0, nullptr, values, n, narrow, wide);
}

cudaError_t RunFunctions(const float* values, int n, float* results) {
  return Launch(FunctionsKernel, Blocks(n), 128, 0, nullptr, values, n, results);
}

}  // namespace ringfill::emulation_test
