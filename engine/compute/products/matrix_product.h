// Products of many activation rows with expanded weights, through oneDNN:
//   y[rows, n] = x[rows, k] * w[n, k]^T
//
// Weights are packed once into oneDNN's own blocked order (PackedWeight), shared by all threads.
// Each thread owns a MatrixProducts, which caches primitives and their scratchpads; every product
// runs on the calling thread alone (one OpenMP thread), because the engine's own threads split
// rows. Rows go in tiles of fixed sizes, so that a row's bits do not depend on how many rows came
// with it and the number of primitives stays bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/float_types.h"
#include "base/status.h"
#include "engine/compute/dtype.h"
#include "engine/compute/products/weight_type.h"

namespace ringfill {

// Row counts that products run in: 16, 64 or 256.
inline constexpr int64_t kMaxProductRows = 256;
// The one tile of products whose bits may not depend on the number of rows.
inline constexpr int64_t kStrictProductRows = 64;
// The smallest tile that holds `rows` (1..256). x and y buffers must have room for this many rows;
// what the rows past `rows` hold does not matter and is written.
int64_t ProductRowTile(int64_t rows);

// The packed order of an [n, k] weight of element type `dtype`; decides bytes and layout. Cheap to
// copy, 0.1 ms to make. Same (dtype, n, k) gives the same format in every thread. Where the machine
// has no bf16 products, those of kBF16 run in float32: weights are packed as float32, unrounded,
// and x is widened inside.
class PackedFormat {
 public:
  PackedFormat(DType dtype, int64_t n, int64_t k);
  DType dtype() const { return dtype_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  size_t bytes() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  DType dtype_;
  int64_t n_, k_;
  std::shared_ptr<const Impl> impl_;
};

// One per thread; not thread-safe.
class MatrixProducts {
 public:
  // `fixed_tile`: 0, or the row count that every product runs in, whatever its rows; buffers then
  // have room for the rows rounded up to it.
  explicit MatrixProducts(int64_t fixed_tile = 0);
  ~MatrixProducts();
  MatrixProducts(MatrixProducts&&) noexcept;

  // Expands rows [0, n) of `w`'s rows [row_begin, row_begin + n) and packs them into `packed`
  // (format.bytes(), 64-byte aligned). REQUIRES: format.n() == n, format.k() == w.cols.
  void Pack(const WeightMatrix& w, int64_t row_begin, const PackedFormat& format,
            std::byte* packed);

  // x: [ProductRowTile(rows), k] in format.dtype(); y: [ProductRowTile(rows), n] in `y_type`; both
  // dense. 1 <= rows <= kMaxProductRows.
  void Run(const PackedFormat& format, const std::byte* packed, const void* x, int64_t rows,
           DType y_type, void* y);

  // Of the memory it keeps between products.
  size_t scratch_bytes() const;

 private:
  void RunTile(const PackedFormat& format, const std::byte* packed, const void* x, int64_t tile,
               DType y_type, void* y);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Plain reference in double. x: [rows, k] floats; w: [n, k] floats; y: [rows, n].
void MatrixProductReference(const float* x, const float* w, int64_t rows, int64_t n, int64_t k,
                            float* y);

}  // namespace ringfill
