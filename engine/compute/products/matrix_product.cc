#include "engine/compute/products/matrix_product.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "engine/compute/products/elementwise.h"
#include "engine/compute/products/pack.h"
#include "oneapi/dnnl/dnnl.hpp"

// oneDNN here uses OpenMP. Only this one call is needed, and the compiler's own OpenMP header may
// belong to another runtime than the library's.
extern "C" {
void omp_set_num_threads(int);
int omp_get_max_threads(void);
}

namespace ringfill {
namespace {

using dnnl::memory;

// oneDNN reads the calling thread's OpenMP team size both when it creates and when it runs a
// primitive. One thread means that no team ever starts.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Held while primitives are described and created: oneDNN keeps one cache of them for the process,
// and hands out descriptions that another thread made. Running a primitive needs no lock.
std::mutex& CreationMutex() {
  static std::mutex mutex;
  return mutex;
}

// Without AVX-512 bf16 oneDNN refuses bf16 or crawls: products then widen to float32.
bool HasBf16Products() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & bf16) == bf16;
}

memory::data_type DnnlType(DType type) {
  return type == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// [rows, cols], rows `stride` elements apart.
memory::desc Rows(int64_t rows, int64_t cols, DType type, int64_t stride) {
  return memory::desc({rows, cols}, DnnlType(type), memory::dims{stride, 1});
}

// Where oneDNN has no blocked order (below AVX-512) its products read plain [k, n] weights, at half
// the speed when rows of them lie far apart: narrow pieces are dense.
constexpr int64_t kPlainPieceColumns = 192;

// The scratchpad is the caller's, so that primitives shared through oneDNN's cache share no memory.
dnnl::matmul::primitive_desc Describe(const dnnl::engine& engine, const memory::desc& x,
                                      const memory::desc& w, const memory::desc& y) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, w, y), attr, engine);
}

}  // namespace

// A weight's outputs in one or more pieces, each a product of its own.
struct Piece {
  int64_t begin, n;
  memory::desc weights;  // [k, n]
  PanelOrder order;
  size_t offset;  // of its bytes in the packed weight
};

struct PackedFormat::Impl {
  DType product_type;  // what products run in
  std::vector<Piece> pieces;
  size_t bytes;
};

namespace {

// The order that oneDNN likes best for the largest tile, where it is one that PackPanels writes.
std::optional<Piece> BlockedPiece(DType type, int64_t n, int64_t k) {
  using Tag = memory::format_tag;
  struct Order {
    int64_t width;
    Tag f32, bf16;
  };
  constexpr Order kOrders[] = {{64, Tag::BA16a64b, Tag::BA16a64b2a},
                               {48, Tag::BA16a48b, Tag::BA16a48b2a},
                               {32, Tag::BA16a32b, Tag::BA16a32b2a},
                               {16, Tag::BA16a16b, Tag::BA16a16b2a}};
  const memory::desc any({k, n}, DnnlType(type), Tag::any);
  const auto best =
      Describe(dnnl::engine(dnnl::engine::kind::cpu, 0), Rows(kMaxProductRows, k, type, k), any,
               Rows(kMaxProductRows, n, DType::kF32, n))
          .weights_desc();
  const int64_t k_round = type == DType::kF32 ? 16 : 32;
  for (const Order& order : kOrders) {
    const memory::desc blocked({k, n}, DnnlType(type),
                               type == DType::kF32 ? order.f32 : order.bf16);
    if (best != blocked) continue;
    const int64_t k_padded = (k + k_round - 1) / k_round * k_round;
    return Piece{0, n, blocked, {type, order.width, k_padded}, 0};
  }
  return std::nullopt;
}

PackedFormat::Impl MakeFormat(DType type, int64_t n, int64_t k) {
  PackedFormat::Impl format{type, {}, 0};
  if (const std::optional<Piece> piece = BlockedPiece(type, n, k)) {
    format.pieces.push_back(*piece);
    format.bytes = piece->weights.get_size();
    return format;
  }
  for (int64_t begin = 0; begin < n; begin += kPlainPieceColumns) {
    const int64_t columns = std::min(kPlainPieceColumns, n - begin);
    const memory::desc plain({k, columns}, DnnlType(type), memory::format_tag::ab);
    format.pieces.push_back({begin, columns, plain, {type, columns, k}, format.bytes});
    format.bytes += plain.get_size();
  }
  return format;
}

}  // namespace

int64_t ProductRowTile(int64_t rows) {
  RF_CHECK(1 <= rows && rows <= kMaxProductRows);
  return rows <= 16 ? 16 : rows <= 64 ? 64 : 256;
}

PackedFormat::PackedFormat(DType dtype, int64_t n, int64_t k) : dtype_(dtype), n_(n), k_(k) {
  RF_CHECK(n > 0 && k > 0);
  const OneThread one_thread;
  const std::lock_guard<std::mutex> lock(CreationMutex());
  const DType type = HasBf16Products() ? dtype : DType::kF32;
  impl_ = std::make_shared<const Impl>(MakeFormat(type, n, k));
}

size_t PackedFormat::bytes() const { return impl_->bytes; }

struct MatrixProducts::Impl {
  struct Product {
    dnnl::matmul primitive;
    memory x, w, y, scratchpad;
  };
  // Type of the products, n of the piece, n, k, tile, type of y.
  using Key = std::tuple<DType, int64_t, int64_t, int64_t, int64_t, DType>;

  Impl() : engine(dnnl::engine::kind::cpu, 0), stream(engine) {}

  Product& Find(const PackedFormat& format, const Piece& piece, int64_t tile, DType y_type);
  void* Grow(AlignedBuffer& buffer, size_t bytes) {
    if (buffer.size() < bytes) buffer = AlignedBuffer(bytes);
    return buffer.data();
  }

  dnnl::engine engine;
  dnnl::stream stream;
  std::map<Key, Product> products;
  AlignedBuffer scratchpad;
  AlignedBuffer wide_x;  // x widened to float32, where products run in float32
  AlignedBuffer wide_y;
  int64_t fixed_tile = 0;
};

MatrixProducts::Impl::Product& MatrixProducts::Impl::Find(const PackedFormat& format,
                                                          const Piece& piece, int64_t tile,
                                                          DType y_type) {
  const DType type = format.impl().product_type;
  const int64_t n = format.n(), k = format.k();
  const auto [it, added] = products.try_emplace({type, piece.n, n, k, tile, y_type});
  if (added) {
    const std::lock_guard<std::mutex> lock(CreationMutex());
    const auto description =
        Describe(engine, Rows(tile, k, type, k), piece.weights, Rows(tile, piece.n, y_type, n));
    it->second = {dnnl::matmul(description), memory(description.src_desc(), engine, nullptr),
                  memory(description.weights_desc(), engine, nullptr),
                  memory(description.dst_desc(), engine, nullptr),
                  memory(description.scratchpad_desc(), engine, nullptr)};
  }
  return it->second;
}

MatrixProducts::MatrixProducts(int64_t fixed_tile) : impl_(std::make_unique<Impl>()) {
  RF_CHECK(fixed_tile >= 0 && fixed_tile <= kMaxProductRows);
  impl_->fixed_tile = fixed_tile;
}
MatrixProducts::~MatrixProducts() = default;
MatrixProducts::MatrixProducts(MatrixProducts&&) noexcept = default;

void MatrixProducts::Pack(const WeightMatrix& w, int64_t row_begin, const PackedFormat& format,
                          std::byte* packed) {
  RF_CHECK(format.k() == w.cols && 0 <= row_begin && row_begin + format.n() <= w.rows);
  for (const Piece& piece : format.impl().pieces) {
    PackPanels(DetectCpuIsa(), w, row_begin + piece.begin, piece.n, piece.order,
               packed + piece.offset);
  }
}

size_t MatrixProducts::scratch_bytes() const {
  return impl_->scratchpad.size() + impl_->wide_x.size() + impl_->wide_y.size();
}

void MatrixProducts::Run(const PackedFormat& format, const std::byte* packed, const void* x,
                         int64_t rows, DType y_type, void* y) {
  const int64_t holding = ProductRowTile(rows);
  const int64_t tile = impl_->fixed_tile != 0 ? impl_->fixed_tile : holding;
  const auto x_bytes = static_cast<size_t>(tile * format.k()) * DTypeBytes(format.dtype());
  const auto y_bytes = static_cast<size_t>(tile * format.n()) * DTypeBytes(y_type);
  for (int64_t first = 0; first < rows; first += tile) {
    RunTile(format, packed, x, tile, y_type, y);
    x = static_cast<const std::byte*>(x) + x_bytes;
    y = static_cast<std::byte*>(y) + y_bytes;
  }
}

void MatrixProducts::RunTile(const PackedFormat& format, const std::byte* packed, const void* x,
                             int64_t tile, DType y_type, void* y) {
  const OneThread one_thread;
  const DType type = format.impl().product_type;
  // A float32 product writes float32 only.
  const DType product_y = type == DType::kF32 ? DType::kF32 : y_type;

  if (type != format.dtype()) {
    const auto* narrow = static_cast<const Bf16*>(x);
    const int64_t count = tile * format.k();
    auto* wide =
        static_cast<float*>(impl_->Grow(impl_->wide_x, static_cast<size_t>(count) * sizeof(float)));
    for (int64_t i = 0; i < count; ++i) wide[i] = ToFloat(narrow[i]);
    x = wide;
  }
  const int64_t y_count = tile * format.n();
  void* product_out = y;
  if (product_y != y_type) {
    product_out = impl_->Grow(impl_->wide_y, static_cast<size_t>(y_count) * sizeof(float));
  }

  for (const Piece& piece : format.impl().pieces) {
    Impl::Product& product = impl_->Find(format, piece, tile, product_y);
    product.x.set_data_handle(const_cast<void*>(x));
    product.w.set_data_handle(const_cast<std::byte*>(packed + piece.offset));
    product.y.set_data_handle(static_cast<std::byte*>(product_out) +
                              static_cast<size_t>(piece.begin) * DTypeBytes(product_y));
    product.scratchpad.set_data_handle(
        impl_->Grow(impl_->scratchpad, product.scratchpad.get_desc().get_size()));
    product.primitive.execute(impl_->stream, {{DNNL_ARG_SRC, product.x},
                                              {DNNL_ARG_WEIGHTS, product.w},
                                              {DNNL_ARG_DST, product.y},
                                              {DNNL_ARG_SCRATCHPAD, product.scratchpad}});
  }
  if (product_y != y_type) {
    ConvertFloats(static_cast<const float*>(product_out), y_count, y_type, y);
  }
}

void MatrixProductReference(const float* x, const float* w, int64_t rows, int64_t n, int64_t k,
                            float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(x[r * k + i]) * w[c * k + i];
      y[r * n + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace ringfill
