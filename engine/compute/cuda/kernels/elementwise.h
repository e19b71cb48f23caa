// What runs between products: norms, sums, activations, conversions, and the search for values that
// are not finite. Matrices are [rows][n], contiguous.
#pragma once

#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

struct RmsNormArgs {
  float* x;             // [rows of x][n]; in and out when `add` is given, else in
  const float* add;     // [rows][n], added to x first; may be null. REQUIRES: no row_index
  const float* weight;  // [n]
  float epsilon;
  int64_t rows;
  int64_t n;
  const int64_t* row_index;  // [rows] rows of x; null: row r is row r
  Element out_type;
  void* out;  // [rows][n]
};
// x += add; out = x * weight / sqrt(mean(x^2) + epsilon). Source: Zhang and Sennrich, "Root Mean
// Square Layer Normalization" (2019).
[[nodiscard]] int RmsNorm(const RmsNormArgs& args, KernelStream stream);

// x += y, n values.
[[nodiscard]] int AddFloats(float* x, const float* y, int64_t n, KernelStream stream);

// out = silu(gate) * up with silu(x) = x / (1 + e^-x), [rows][n] values of `type`; rows lie
// gate_stride (for gate and up) and out_stride values apart. out may be gate. Float32 inside.
// Source: Shazeer, "GLU Variants Improve Transformer" (2020).
struct SiluMulArgs {
  Element type;
  const void* gate;
  const void* up;
  void* out;
  int64_t rows;
  int64_t n;
  int64_t gate_stride;
  int64_t out_stride;
};
[[nodiscard]] int SiluMul(const SiluMulArgs& args, KernelStream stream);

// out = x in `type`, n values.
[[nodiscard]] int ConvertFloats(const float* x, int64_t n, Element type, void* out,
                                KernelStream stream);

// Rows that all-gathered slices make up: rank r's part, at gathered + r * part_stride, holds
// [tokens][stride] floats, the first of each row being columns [width * r / ranks, width * (r + 1)
// / ranks) of out's (SliceOf with block 1). out: [tokens][width]; added to when `add`.
struct SlicesArgs {
  const float* gathered;
  int64_t part_stride;
  int ranks;
  int64_t tokens;
  int64_t width;
  int64_t stride;
  bool add;
  float* out;
};
[[nodiscard]] int JoinSlices(const SlicesArgs& args, KernelStream stream);

// x += parts[0] + ... + parts[count - 1], one after the other; parts: [count][n].
[[nodiscard]] int AddParts(float* x, const float* parts, int count, int64_t n, KernelStream stream);

// Sets bit chunk[r] (0 to 63) of *mask for every row r of x that holds a value that is not finite.
[[nodiscard]] int NoteNonFinite(const float* x, int64_t rows, int64_t n, const int32_t* chunk,
                                unsigned long long* mask, KernelStream stream);

// The same for tokens whose values are `pieces` times `floats` in a row: token t's begin at
// x + t * token_stride, a piece piece_stride behind the one before. Where one is not finite and
// first[t] is 0, it becomes `place`.
struct NoteFaultsArgs {
  const float* x;
  int64_t tokens;
  int64_t token_stride;
  int pieces;
  int64_t piece_stride;
  int64_t floats;
  unsigned place;   // not 0
  unsigned* first;  // [tokens]
};
[[nodiscard]] int NoteFaults(const NoteFaultsArgs& args, KernelStream stream);

}  // namespace ringfill::gpu
