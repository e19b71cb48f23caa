#include "tests/cuda_emulation/cublaslt/problem.h"

#include <oneapi/dnnl/dnnl.h>

#include <vector>

#include "base/check.h"
#include "base/float_types.h"
#include "tests/cuda_emulation/include/emulated_device_calls.h"

// oneDNN here uses OpenMP, whose header need not be there.
extern "C" {
void omp_set_num_threads(int);
int omp_get_max_threads(void);
}

namespace ringfill::cuda_emulation {
namespace {

// Several emulated devices multiply at once, each on its host thread.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

bool Stored(const MatrixLayout& layout) {
  return layout.rows > 0 && layout.columns > 0 &&
         layout.stride >= static_cast<int64_t>(layout.rows) && layout.batches > 0;
}

float Element(const void* from, cudaDataType_t type, size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[i];
  const uint16_t bits = static_cast<const uint16_t*>(from)[i];
  return type == CUDA_R_16BF ? ToFloat(Bf16{bits}) : HalfToFloat(bits);
}

void SetElement(void* to, cudaDataType_t type, size_t i, float v) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(to)[i] = v;
  } else {
    static_cast<uint16_t*>(to)[i] = type == CUDA_R_16BF ? ToBf16(v).bits : FloatToHalf(v);
  }
}

// [columns][rows]
std::vector<float> Unpack(const MatrixLayout& layout, const void* from) {
  std::vector<float> values(layout.rows * layout.columns);
  const auto stride = static_cast<size_t>(layout.stride);
  for (size_t column = 0; column < layout.columns; ++column) {
    for (size_t row = 0; row < layout.rows; ++row) {
      values[column * layout.rows + row] = Element(from, layout.type, column * stride + row);
    }
  }
  return values;
}

const void* Offset(const void* p, const MatrixLayout& layout, int batch) {
  return static_cast<const std::byte*>(p) +
         batch * layout.batch_stride * static_cast<int64_t>(layout.ElementBytes());
}

}  // namespace

cublasStatus_t MatmulProblem::Check() const {
  for (const MatrixLayout& matrix : layout) {
    if (!Stored(matrix) || matrix.batches != layout[kD].batches) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const bool plain_a = operation.a == CUBLAS_OP_N, plain_b = operation.b == CUBLAS_OP_N;
  const MatrixLayout &a = layout[kA], &b = layout[kB], &c = layout[kC], &d = layout[kD];
  if ((plain_a ? a.rows : a.columns) != d.rows || (plain_b ? b.columns : b.rows) != d.columns ||
      (plain_b ? b.rows : b.columns) != k() || c.rows != d.rows || c.columns != d.columns) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // From the table of supported types for CUBLAS_COMPUTE_32F with scales in CUDA_R_32F.
  const bool types = a.type == b.type && c.type == d.type &&
                     (d.type == CUDA_R_32F || d.type == a.type) &&
                     operation.compute == CUBLAS_COMPUTE_32F && operation.scale == CUDA_R_32F;
  return types ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

uint64_t MatmulProblem::Digest() const {
  uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over the values
  const auto add = [&digest](uint64_t value) { digest = (digest ^ value) * 0x100000001b3u; };
  add(static_cast<uint64_t>(operation.a));
  add(static_cast<uint64_t>(operation.b));
  for (const MatrixLayout& matrix : layout) {
    add(static_cast<uint64_t>(matrix.type));
    add(matrix.rows);
    add(matrix.columns);
    add(static_cast<uint64_t>(matrix.stride));
    add(static_cast<uint64_t>(matrix.batches));
    add(static_cast<uint64_t>(matrix.batch_stride));
  }
  return digest;
}

void Multiply(const MatmulProblem& problem, float alpha, const void* a, const void* b, float beta,
              const void* c, void* d) {
  const OneThread one_thread;
  const MatrixLayout& out = problem.layout[kD];
  const auto m = static_cast<dnnl_dim_t>(problem.m()), n = static_cast<dnnl_dim_t>(problem.n());
  std::vector<float> sums(problem.m() * problem.n());
  for (int batch = 0; batch < out.batches; ++batch) {
    const std::vector<float> fa = Unpack(problem.layout[kA], Offset(a, problem.layout[kA], batch));
    const std::vector<float> fb = Unpack(problem.layout[kB], Offset(b, problem.layout[kB], batch));
    // Row after row, d^T [n][m] = op(b)^T op(a)^T.
    RF_CHECK(dnnl_sgemm(problem.operation.b == CUBLAS_OP_N ? 'N' : 'T',
                        problem.operation.a == CUBLAS_OP_N ? 'N' : 'T', n, m,
                        static_cast<dnnl_dim_t>(problem.k()), alpha, fb.data(),
                        static_cast<dnnl_dim_t>(problem.layout[kB].rows), fa.data(),
                        static_cast<dnnl_dim_t>(problem.layout[kA].rows), 0.0f, sums.data(),
                        m) == dnnl_success);
    const void* added = Offset(c, problem.layout[kC], batch);
    void* to = const_cast<void*>(Offset(d, out, batch));
    for (size_t column = 0; column < out.columns; ++column) {
      for (size_t row = 0; row < out.rows; ++row) {
        float v = sums[column * out.rows + row];
        if (beta != 0) {
          v += beta * Element(added, problem.layout[kC].type,
                              column * static_cast<size_t>(problem.layout[kC].stride) + row);
        }
        SetElement(to, out.type, column * static_cast<size_t>(out.stride) + row, v);
      }
    }
  }
}

}  // namespace ringfill::cuda_emulation
