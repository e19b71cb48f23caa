#include "engine/compute/attention/tiled_attention.h"

#include <algorithm>

#include "base/check.h"
#include "base/float_types.h"
#include "engine/compute/attention/kv_pages.h"

namespace ringfill {
namespace {

// Bytes of K (and as many of V) in a pass: both stay in a 1 MiB second-level cache.
constexpr size_t kPassBytes = size_t{128} << 10;
constexpr int kMinPassTokens = 256;
constexpr int kMaxPassSlices = kMaxPassTokens / kSliceTokens;

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
      : shape_(options.shape),
        kernel_(options.kernel),
        packing_(options.packing),
        name_(options.name),
        pass_tokens_(PassTokens(options.shape)) {
    RF_CHECK(kernel_ != nullptr && shape_.head_dim % kSliceTokens == 0);
  }

  size_t ScratchBytes(int rows) const override {
    return RoundUp64(QueryBytes(rows)) + kScoreBytes + 2 * kSliceBytes;
  }

  std::string_view name() const override { return name_; }

  void Run(const AttentionTile& tile, std::byte* scratch) const override {
    const int64_t end = MaxVisible(tile);
    if (end <= 0) return;
    const int rows = tile.tokens * tile.group;
    const GroupCut cut(rows);
    auto* q = reinterpret_cast<uint32_t*>(scratch);
    std::byte* rest = scratch + RoundUp64(QueryBytes(rows));
    auto* scores = reinterpret_cast<float*>(rest);
    auto** k = reinterpret_cast<const std::byte**>(rest + kScoreBytes);
    auto** v = reinterpret_cast<const std::byte**>(rest + kScoreBytes + kSliceBytes);
    for (int g = 0; g < cut.groups; ++g) {
      PackGroup(tile.q, cut.First(g), cut.Rows(g), q + cut.First(g) * WordsPerRow());
    }
    const KvPass pass{k, v, shape_.head_dim, shape_.page_tokens};
    for (int64_t first = 0; first < end; first += pass_tokens_) {
      FindSlices(tile.kv, first, std::min(end, first + pass_tokens_), k, v);
      for (int g = 0; g < cut.groups; ++g) {
        RunGroup(tile, first, cut.First(g), cut.Rows(g), q, scores, pass);
      }
    }
  }

 private:
  static constexpr size_t kScoreBytes = sizeof(float) * kMaxGroupRows * kScoreStride;
  static constexpr size_t kSliceBytes = sizeof(std::byte*) * kMaxPassSlices;

  static int PassTokens(const KvBlockShape& shape) {
    const size_t token_bytes = shape.head_dim * DTypeBytes(shape.type);
    const int tokens = static_cast<int>(kPassBytes / token_bytes) / kSliceTokens * kSliceTokens;
    return std::clamp(tokens, kMinPassTokens, kMaxPassTokens);
  }

  ptrdiff_t WordsPerRow() const {
    return packing_ == QueryPacking::kFloat ? shape_.head_dim : shape_.head_dim / 2;
  }
  size_t QueryBytes(int rows) const { return sizeof(uint32_t) * rows * WordsPerRow(); }

  // Word w of the group's row r goes to out[w, r].
  void PackGroup(const void* q, int first, int rows, uint32_t* out) const {
    const ptrdiff_t words = WordsPerRow();
    for (ptrdiff_t r = 0; r < rows; ++r) {
      const ptrdiff_t in = (first + r) * words;
      for (ptrdiff_t w = 0; w < words; ++w) {
        uint32_t& to = out[w * rows + r];
        if (packing_ == QueryPacking::kFloat && shape_.type == DType::kBF16) {
          to = uint32_t{static_cast<const Bf16*>(q)[in + w].bits} << 16;
        } else {
          to = static_cast<const uint32_t*>(q)[in + w];
        }
      }
    }
  }

  void FindSlices(const KvBlocks& kv, int64_t first, int64_t end, const std::byte** k,
                  const std::byte** v) const {
    for (int64_t token = first; token < end; token += kSliceTokens, ++k, ++v) {
      const std::byte* page = KvPage(kv, token / shape_.page_tokens);
      const size_t in_page = token % shape_.page_tokens;
      *k = page + kv.k_offset_bytes + in_page * sizeof(uint32_t);
      *v = page + kv.v_offset_bytes + in_page * shape_.head_dim * DTypeBytes(shape_.type);
    }
  }

  void RunGroup(const AttentionTile& tile, int64_t first, int row, int rows, const uint32_t* q,
                float* scores, const KvPass& pass) const {
    int seen[kMaxGroupRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t keys = tile.visible[(row + r) / tile.group] - first;
      seen[r] = static_cast<int>(std::clamp<int64_t>(keys, 0, pass_tokens_));
    }
    if (seen[rows - 1] == 0) return;
    const SoftmaxRow state = tile.state.Row(row, shape_.head_dim);
    kernel_(pass, {rows,
                   seen[rows - 1],
                   seen,
                   q + row * WordsPerRow(),
                   {state.max, state.sum, state.acc},
                   scores});
  }

  const KvBlockShape shape_;
  const GroupKernel kernel_;
  const QueryPacking packing_;
  const std::string_view name_;
  const int pass_tokens_;
};

}  // namespace

std::unique_ptr<AttentionKernel> MakeTiledAttention(const TiledOptions& options) {
  return std::make_unique<TiledAttention>(options);
}

}  // namespace ringfill
