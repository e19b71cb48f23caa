#include "engine/compute/attention/tiled_attention.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/attention/kv_pages.h"

namespace ringfill {
namespace {

// Bytes of K (and as many of V) in a pass: both stay in a 1 MiB second-level cache.
constexpr size_t kPassBytes = size_t{128} << 10;
constexpr int kMinPassTokens = 256;
constexpr int kMaxPassSlices = kMaxPassTokens / kSliceTokens;
static_assert(kMaxPassTokens % kMinPassTokens == 0 && kMinPassTokens % kSliceTokens == 0);
static_assert(kExactCutTokens % kMaxPassTokens == 0);
// Below it, widening a pass costs more than the faster kernel gains.
constexpr int kMinWidenedRows = 12;

// Both halves of each bf16 pair: `lines` lines of `columns` pairs, `step` words from one to the
// next. out: [2 * lines, columns].
void WidenPairs(const std::byte* pairs, ptrdiff_t step, int lines, int columns, float* out) {
  for (int line = 0; line < lines; ++line, pairs += step * sizeof(uint32_t), out += 2 * columns) {
    for (int i = 0; i < columns; ++i) {
      uint32_t pair;
      std::memcpy(&pair, pairs + i * sizeof(pair), sizeof(pair));
      out[i] = std::bit_cast<float>(pair << 16);
      out[columns + i] = std::bit_cast<float>(pair & 0xffff0000u);
    }
  }
}

constexpr size_t RoundUp64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows are dealt evenly to as few groups as possible: 8 rows make 4 + 4, not 6 + 2.
struct GroupCut {
  explicit GroupCut(int rows)
      : groups((rows + kMaxGroupRows - 1) / kMaxGroupRows),
        base(groups > 0 ? rows / groups : 0),
        larger(groups > 0 ? rows % groups : 0) {}

  int First(int group) const { return group * base + std::min(group, larger); }
  int Rows(int group) const { return base + (group < larger ? 1 : 0); }

  const int groups, base, larger;
};

class TiledAttention : public AttentionKernel {
 public:
  explicit TiledAttention(const TiledOptions& options)
      : options_(options), shape_(options.shape), pass_tokens_(PassTokens(options)) {
    RF_CHECK(options.kernel != nullptr && shape_.head_dim % kSliceTokens == 0);
    RF_CHECK(options.widened == nullptr || shape_.type == DType::kBF16);
  }

  size_t ScratchBytes(int rows) const override {
    return RoundUp64(QueryBytes(rows)) + kScoreBytes + 2 * kSliceBytes +
           (Widens(rows) ? 2 * WidenedBytes() : 0);
  }

  std::string_view name() const override { return options_.name; }

  void Run(const AttentionTile& tile, std::byte* memory) const override {
    const int64_t end = MaxVisible(tile);
    if (end <= tile.begin) return;
    const int rows = tile.tokens * tile.group;
    const bool widens = Widens(rows);
    const GroupCut cut(rows);
    const Scratch scratch = Carve(memory, rows);
    for (int g = 0; g < cut.groups; ++g) {
      PackGroup(tile.q, cut.First(g), cut.Rows(g), scratch.q + cut.First(g) * WordsPerRow());
    }
    const GroupKernel kernel = widens ? options_.widened : options_.kernel;
    const KvPass pass{scratch.k, scratch.v, shape_.head_dim,
                      widens ? kSliceTokens : shape_.page_tokens};
    // Passes end at fixed places of the run, wherever the first begins.
    for (int64_t first = tile.begin / kSliceTokens * kSliceTokens, last; first < end;
         first = last) {
      last = std::min(end, (first / pass_tokens_ + 1) * pass_tokens_);
      FindSlices(tile.kv, first, last, scratch);
      if (widens) WidenSlices(static_cast<int>(last - first), scratch);
      for (int g = 0; g < cut.groups; ++g) {
        RunGroup(tile, {first, last}, cut.First(g), cut.Rows(g), scratch, kernel, pass);
      }
    }
  }

 private:
  static constexpr size_t kScoreBytes = sizeof(float) * kMaxGroupRows * kScoreStride;
  static constexpr size_t kSliceBytes = sizeof(std::byte*) * kMaxPassSlices;

  // Tokens of the run.
  struct PassSpan {
    int64_t first, last;
  };

  struct Scratch {
    uint32_t* q;          // [groups][words, rows of the group]
    float* scores;        // [kMaxGroupRows, kScoreStride]
    const std::byte** k;  // [kMaxPassSlices]
    const std::byte** v;  // [kMaxPassSlices]
    float* wide_k;        // [slices][head_dim, kSliceTokens], of tiles that widen
    float* wide_v;        // [slices][kSliceTokens, head_dim]
  };

  // Does not depend on the rows of a tile, since the cuts between passes show in a row's bits.
  // Divides kMaxPassTokens, so that runs cut at its multiples are cut between passes.
  static int PassTokens(const TiledOptions& options) {
    const DType type = options.widened != nullptr ? DType::kF32 : options.shape.type;
    const size_t token_bytes = options.shape.head_dim * DTypeBytes(type);
    const auto tokens = static_cast<int>(std::bit_floor(kPassBytes / token_bytes));
    return std::clamp(tokens, kMinPassTokens, kMaxPassTokens);
  }

  bool Widens(int rows) const { return options_.widened != nullptr && rows >= kMinWidenedRows; }
  ptrdiff_t WordsPerRow() const {
    return options_.packing == QueryPacking::kFloat ? shape_.head_dim : shape_.head_dim / 2;
  }
  size_t QueryBytes(int rows) const { return sizeof(uint32_t) * rows * WordsPerRow(); }
  size_t WidenedBytes() const { return sizeof(float) * pass_tokens_ * shape_.head_dim; }

  Scratch Carve(std::byte* at, int rows) const {
    std::byte* scores = at + RoundUp64(QueryBytes(rows));
    std::byte* k = scores + kScoreBytes;
    std::byte* wide = k + 2 * kSliceBytes;
    Scratch out{reinterpret_cast<uint32_t*>(at),
                reinterpret_cast<float*>(scores),
                reinterpret_cast<const std::byte**>(k),
                reinterpret_cast<const std::byte**>(k + kSliceBytes),
                nullptr,
                nullptr};
    if (Widens(rows)) {
      out.wide_k = reinterpret_cast<float*>(wide);
      out.wide_v = reinterpret_cast<float*>(wide + WidenedBytes());
    }
    return out;
  }

  // Word w of the group's row r goes to out[w, r].
  void PackGroup(const void* q, int first, int rows, uint32_t* out) const {
    const ptrdiff_t words = WordsPerRow();
    const bool widen = options_.packing == QueryPacking::kFloat && shape_.type == DType::kBF16;
    for (ptrdiff_t r = 0; r < rows; ++r) {
      const ptrdiff_t in = (first + r) * words;
      for (ptrdiff_t w = 0; w < words; ++w) {
        uint32_t& to = out[w * rows + r];
        if (widen) {
          to = uint32_t{static_cast<const Bf16*>(q)[in + w].bits} << 16;
        } else {
          std::memcpy(&to, static_cast<const std::byte*>(q) + (in + w) * sizeof(to), sizeof(to));
        }
      }
    }
  }

  void FindSlices(const KvBlocks& kv, int64_t first, int64_t end, const Scratch& scratch) const {
    const std::byte** k = scratch.k;
    const std::byte** v = scratch.v;
    for (int64_t token = first; token < end; token += kSliceTokens) {
      const std::byte* page = KvPage(kv, token / shape_.page_tokens);
      const size_t in_page = token % shape_.page_tokens;
      *k++ = page + kv.k_offset_bytes + in_page * sizeof(uint32_t);
      *v++ = page + kv.v_offset_bytes + in_page * shape_.head_dim * DTypeBytes(shape_.type);
    }
  }

  void WidenSlices(int keys, const Scratch& scratch) const {
    const int dim = shape_.head_dim;
    for (int slice = 0; slice * kSliceTokens < keys; ++slice) {
      float* k = scratch.wide_k + static_cast<ptrdiff_t>(slice) * kSliceTokens * dim;
      float* v = scratch.wide_v + static_cast<ptrdiff_t>(slice) * kSliceTokens * dim;
      WidenPairs(scratch.k[slice], shape_.page_tokens, dim / 2, kSliceTokens, k);
      WidenPairs(scratch.v[slice], dim, kSliceTokens / 2, dim, v);
      scratch.k[slice] = reinterpret_cast<const std::byte*>(k);
      scratch.v[slice] = reinterpret_cast<const std::byte*>(v);
    }
  }

  void RunGroup(const AttentionTile& tile, PassSpan span, int row, int rows, const Scratch& scratch,
                GroupKernel kernel, const KvPass& pass) const {
    const int skip = static_cast<int>(std::max<int64_t>(0, tile.begin - span.first));
    int seen[kMaxGroupRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t end = tile.visible[(row + r) / tile.group];
      seen[r] = static_cast<int>(std::clamp(end, span.first, span.last) - span.first);
    }
    if (seen[rows - 1] <= skip) return;
    const SoftmaxRow state = tile.state.Row(row, shape_.head_dim);
    kernel(pass, {rows,
                  seen[rows - 1],
                  skip,
                  seen,
                  scratch.q + row * WordsPerRow(),
                  {state.max, state.sum, state.acc},
                  scratch.scores});
  }

  const TiledOptions options_;
  const KvBlockShape shape_;
  const int pass_tokens_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeTiledAttention(const TiledOptions& options) {
  return std::make_unique<TiledAttention>(options);
}

}  // namespace ringfill
