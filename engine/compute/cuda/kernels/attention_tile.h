// Device code that prefill and decode attention share: K and V tiles on their way into shared
// memory, and one warp's 16 query rows against some keys of a tile.
//
// Tiles lie in shared memory as [keys][head_dim] with 16 bytes after each row, so that the eight
// rows of an ldmatrix lie in different banks. Lane numbering of fragments: device_code.h; a lane
// holds parts of rows g and g + 8 of its warp's 16, called halves 0 and 1.
#pragma once

#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/attention.h"

namespace ringfill::gpu {

template <int kHeadDim>
struct TileShape {
  static_assert(AttentionTakesHeadDim(kHeadDim) && kHeadDim % 16 == 0);
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kStride = TileStride(kHeadDim);
  static constexpr int kChunks = kRowBytes / 16;  // copies of a row
};

// Where a run's K and V lie for one KV head.
struct HeadPages {
  const unsigned char* k;  // the head's K block of page 0
  int64_t v_minus_k;
  int64_t page_stride;
  const uint32_t* table;  // null: consecutive
  unsigned page_tokens;
  int page_shift;  // log2(page_tokens), -1 where it is no power of two

  RF_DEVICE const unsigned char* KRow(unsigned key, int row_bytes) const {
    const unsigned logical = page_shift >= 0 ? key >> page_shift : key / page_tokens;
    const unsigned page = table != nullptr ? table[logical] : logical;
    const unsigned within = key - logical * page_tokens;
    return k + static_cast<int64_t>(page) * page_stride + static_cast<int64_t>(within) * row_bytes;
  }
};

RF_DEVICE HeadPages PagesOfHead(const AttentionArgs& args, int run, int kv_head, int row_bytes) {
  const KvRunView view = args.runs[run];
  const int64_t head = static_cast<int64_t>(kv_head) * args.kv.page_tokens * row_bytes;
  HeadPages pages;
  pages.k =
      reinterpret_cast<const unsigned char*>(args.kv.base) + view.offset + args.kv.k_offset + head;
  pages.v_minus_k = args.kv.v_offset - args.kv.k_offset;
  pages.page_stride = args.kv.page_stride;
  pages.table =
      view.first_page == KvRunView::kConsecutive ? nullptr : args.page_table + view.first_page;
  pages.page_tokens = static_cast<unsigned>(args.kv.page_tokens);
  pages.page_shift = -1;
  RF_UNROLL
  for (int shift = 4; shift < 16; ++shift) {
    if (pages.page_tokens == 1u << shift) pages.page_shift = shift;
  }
  return pages;
}

// Queues the copies of keys [first, first + kKeys) of the run, by all kThreads threads of a block;
// those from `end` on become zeros, which no masked probability can turn into NaN.
template <int kHeadDim, int kKeys, int kThreads>
RF_DEVICE void LoadKeys(const HeadPages& pages, unsigned first, unsigned end, unsigned char* k_tile,
                        unsigned char* v_tile) {
  using Shape = TileShape<kHeadDim>;
  static_assert(kKeys * Shape::kChunks % kThreads == 0);
  RF_UNROLL
  for (int i = 0; i < kKeys * Shape::kChunks / kThreads; ++i) {
    const int copy = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = copy / Shape::kChunks;
    const int column = copy % Shape::kChunks * 16;
    const unsigned key = first + static_cast<unsigned>(row);
    const bool in = key < end;
    // Nothing is read for keys past the end; the address is one that exists.
    const unsigned char* from = pages.KRow(in ? key : end - 1, Shape::kRowBytes) + column;
    const int bytes = in ? 16 : 0;
    CpAsync16(k_tile + row * Shape::kStride + column, from, bytes);
    CpAsync16(v_tile + row * Shape::kStride + column, from + pages.v_minus_k, bytes);
  }
}

// What a warp's 16 rows have seen; each lane has its part.
template <int kHeadDim>
struct WarpState {
  float max[2];
  float sum[2];
  float acc[kHeadDim / 8][4];
};

template <int kHeadDim>
RF_DEVICE void ClearState(WarpState<kHeadDim>& state) {
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    state.max[half] = -kInfinity;
    state.sum[half] = 0.0f;
  }
  RF_UNROLL
  for (int n = 0; n < kHeadDim / 8; ++n) {
    RF_UNROLL
    for (int i = 0; i < 4; ++i) state.acc[n][i] = 0.0f;
  }
}

// Query fragments of 16 columns: from registers, or again and again from shared memory where
// registers are short.
template <int kHeadDim, bool kInRegisters>
struct QueryFragments;

template <int kHeadDim>
struct QueryFragments<kHeadDim, true> {
  unsigned a[kHeadDim / 16][4];

  // `tile`: the warp's 16 rows.
  RF_DEVICE void Load(const unsigned char* tile) {
    const int lane = LaneId();
    const unsigned char* row = tile + lane % 16 * TileShape<kHeadDim>::kStride + lane / 16 * 16;
    RF_UNROLL
    for (int step = 0; step < kHeadDim / 16; ++step) LdMatrixX4(a[step], row + step * 32);
  }
  RF_DEVICE void Get(int step, unsigned (&out)[4]) const {
    RF_UNROLL
    for (int i = 0; i < 4; ++i) out[i] = a[step][i];
  }
};

template <int kHeadDim>
struct QueryFragments<kHeadDim, false> {
  const unsigned char* row;

  RF_DEVICE void Load(const unsigned char* tile) {
    const int lane = LaneId();
    row = tile + lane % 16 * TileShape<kHeadDim>::kStride + lane / 16 * 16;
  }
  RF_DEVICE void Get(int step, unsigned (&out)[4]) const { LdMatrixX4(out, row + step * 32); }
};

// scores = q * K^T for kKeys keys whose rows begin at `k_tile`.
template <typename T, int kHeadDim, int kKeys, typename Query>
RF_DEVICE void Scores(const Query& query, const unsigned char* k_tile,
                      float (&scores)[kKeys / 8][4]) {
  const int lane = LaneId();
  // Matrices 0, 1: columns 0-7 and 8-15 of keys 0-7; matrices 2, 3: of keys 8-15.
  const unsigned char* row =
      k_tile + (lane / 16 * 8 + lane % 8) * TileShape<kHeadDim>::kStride + lane / 8 % 2 * 16;
  RF_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    RF_UNROLL
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
  RF_UNROLL
  for (int step = 0; step < kHeadDim / 16; ++step) {
    unsigned a[4], b[kKeys / 8][2];
    query.Get(step, a);
    RF_UNROLL
    for (int pair = 0; pair < kKeys / 16; ++pair) {
      unsigned r[4];
      LdMatrixX4(r, row + pair * 16 * TileShape<kHeadDim>::kStride + step * 32);
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
    MmaM16N8K16<T>(scores, a, b);
  }
}

// Scores of keys outside [begin, end) of a half become -inf; counted from the first key.
template <int kKeys>
RF_DEVICE void Mask(const int (&begin)[2], const int (&end)[2], float (&scores)[kKeys / 8][4]) {
  const int first = LaneId() % 4 * 2;
  RF_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    RF_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = n * 8 + first + i % 2;
      if (key < begin[i / 2] || key >= end[i / 2]) scores[n][i] = -kInfinity;
    }
  }
}

// Scores become probabilities relative to the new maximum, to which the state is rescaled.
template <int kHeadDim, int kKeys>
RF_DEVICE void UpdateSoftmax(WarpState<kHeadDim>& state, float (&scores)[kKeys / 8][4]) {
  RF_UNROLL
  for (int half = 0; half < 2; ++half) {
    float max = state.max[half];
    RF_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      max = fmaxf(max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    max = fmaxf(max, ShuffleXor(max, 1));
    max = fmaxf(max, ShuffleXor(max, 2));
    // A row that has seen nothing yet: any finite base leaves its zeros alone.
    const float base = max == -kInfinity ? 0.0f : max;
    const float scale = Exp2(state.max[half] - base);
    float sum = 0.0f;
    RF_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      RF_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = Exp2(scores[n][i] - base);
        sum += scores[n][i];
      }
    }
    // Summed over the row's four lanes here and not at the end, so that a state written and read
    // again between tiles goes on with the bits it had.
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    state.sum[half] = state.sum[half] * scale + sum;
    state.max[half] = max;
    RF_UNROLL
    for (int n = 0; n < kHeadDim / 8; ++n) {
      state.acc[n][2 * half] *= scale;
      state.acc[n][2 * half + 1] *= scale;
    }
  }
}

// acc += probabilities * V for kKeys keys whose rows begin at `v_tile`.
template <typename T, int kHeadDim, int kKeys>
RF_DEVICE void AddValues(const float (&probabilities)[kKeys / 8][4], const unsigned char* v_tile,
                         WarpState<kHeadDim>& state) {
  const int lane = LaneId();
  // Matrices 0, 1: keys 0-7 and 8-15 of columns 0-7; matrices 2, 3: of columns 8-15.
  const unsigned char* row = v_tile + lane % 16 * TileShape<kHeadDim>::kStride + lane / 16 * 16;
  RF_UNROLL
  for (int step = 0; step < kKeys / 16; ++step) {
    // The layout of a product's result is the one of a left operand.
    const float(&low)[4] = probabilities[2 * step];
    const float(&high)[4] = probabilities[2 * step + 1];
    const unsigned a[4] = {Pack<T>(low[0], low[1]), Pack<T>(low[2], low[3]),
                           Pack<T>(high[0], high[1]), Pack<T>(high[2], high[3])};
    unsigned b[kHeadDim / 8][2];
    RF_UNROLL
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      unsigned r[4];
      LdMatrixX4Trans(r, row + step * 16 * TileShape<kHeadDim>::kStride + pair * 32);
      b[2 * pair][0] = r[0];
      b[2 * pair][1] = r[1];
      b[2 * pair + 1][0] = r[2];
      b[2 * pair + 1][1] = r[3];
    }
    MmaM16N8K16<T>(state.acc, a, b);
  }
}

}  // namespace ringfill::gpu
