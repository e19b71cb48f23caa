// ldmatrix and mma.m16n8k16 as the PTX manual defines their fragments ("Matrix Fragments for
// mma.m16n8k16 with floating point type", "ldmatrix").
#include <cstring>

#include "base/float_types.h"
#include "tests/cuda_emulation/execution/block.h"

namespace ringfill::cuda_emulation {
namespace {

constexpr int kRows = 16;      // of a and d
constexpr int kColumns = 8;    // of b and d
constexpr int kInner = 16;     // columns of a, rows of b
constexpr int kRowBytes = 16;  // of an ldmatrix row
constexpr int kMatrices = 4;   // of an ldmatrix
constexpr int kMaxBatch = 64;  // columns of b tiles computed at a time

struct LdMatrixOperands {
  unsigned* registers;
  bool transposed;
  const void* row;
  Site site;
};

void CompleteLdMatrix(BlockExecutor& executor, unsigned,
                      const std::array<void*, kLanes>& operands) {
  const auto* first = static_cast<const LdMatrixOperands*>(operands[0]);
  uint16_t elements[kMatrices][8][8];
  const int first_thread = executor.thread().warp() * kLanes;
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      const int lane = matrix * 8 + row;
      const void* from =
          static_cast<const LdMatrixOperands*>(operands[static_cast<size_t>(lane)])->row;
      executor.CheckAligned(from, kRowBytes, first->site);
      if (!executor.IsShared(from)) {
        executor.Report("the row of lane " + std::to_string(lane) + " is not in shared memory",
                        first->site);
        executor.Leave();
      }
      executor.Check(AccessKind::kRead, from, kRowBytes, executor.thread(first_thread + lane),
                     first->site);
      std::memcpy(elements[matrix][row], from, kRowBytes);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto* own = static_cast<const LdMatrixOperands*>(operands[static_cast<size_t>(lane)]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      const auto& m = elements[matrix];
      const unsigned low = first->transposed ? m[pair][group] : m[group][pair];
      const unsigned high = first->transposed ? m[pair + 1][group] : m[group][pair + 1];
      own->registers[matrix] = low | high << 16;
    }
  }
}

struct MmaOperands {
  bool is_bf16;
  int m, n;
  float* d;
  const unsigned* a;
  const unsigned* b;
};

float Element(bool is_bf16, unsigned pair, int index) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * index));
  return is_bf16 ? ToFloat(Bf16{bits}) : HalfToFloat(bits);
}

const MmaOperands& OfLane(const std::array<void*, kLanes>& operands, int lane) {
  return *static_cast<const MmaOperands*>(operands[static_cast<size_t>(lane)]);
}

// rows [16][16] of the i-th a.
void GatherA(const std::array<void*, kLanes>& operands, int i, float (&rows)[kRows][kInner]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands& own = OfLane(operands, lane);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        rows[group + r % 2 * 8][pair + r / 2 * 8 + e] = Element(own.is_bf16, own.a[i * 4 + r], e);
      }
    }
  }
}

// rows [16][8 * count] of the b's from `first` on.
void GatherB(const std::array<void*, kLanes>& operands, int first, int count,
             float (&rows)[kInner][kMaxBatch]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands& own = OfLane(operands, lane);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int j = 0; j < count; ++j) {
      for (int r = 0; r < 2; ++r) {
        for (int e = 0; e < 2; ++e) {
          rows[pair + r * 8 + e][j * kColumns + group] =
              Element(own.is_bf16, own.b[(first + j) * 2 + r], e);
        }
      }
    }
  }
}

// sums += a * b, over all columns: the compiler makes vectors of the inner loop.
void Multiply(const float (&a)[kRows][kInner], const float (&b)[kInner][kMaxBatch],
              float (&sums)[kRows][kMaxBatch]) {
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kInner; ++k) {
      const float factor = a[row][k];
      for (int column = 0; column < kMaxBatch; ++column) {
        sums[row][column] += factor * b[k][column];
      }
    }
  }
}

// Adds to, or reads from, the d of products (i, first) to (i, first + count).
template <typename Move>
void ForEachResult(const std::array<void*, kLanes>& operands, int i, int first, int count,
                   Move move) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const MmaOperands& own = OfLane(operands, lane);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int j = 0; j < count; ++j) {
      float* d = own.d + (i * own.n + first + j) * 4;
      for (int r = 0; r < 4; ++r) {
        move(d[r], group + r / 2 * 8, j * kColumns + pair + r % 2);
      }
    }
  }
}

void CompleteMma(BlockExecutor&, unsigned, const std::array<void*, kLanes>& operands) {
  constexpr int kBatch = kMaxBatch / kColumns;
  const MmaOperands& first = OfLane(operands, 0);
  float a[kRows][kInner];
  float b[kInner][kMaxBatch] = {};
  float sums[kRows][kMaxBatch] = {};
  for (int j = 0; j < first.n; j += kBatch) {
    const int count = std::min(kBatch, first.n - j);
    GatherB(operands, j, count, b);
    for (int i = 0; i < first.m; ++i) {
      GatherA(operands, i, a);
      ForEachResult(operands, i, j, count,
                    [&](float& d, int row, int column) { sums[row][column] = d; });
      Multiply(a, b, sums);
      ForEachResult(operands, i, j, count,
                    [&](float& d, int row, int column) { d = sums[row][column]; });
    }
  }
}

constexpr const char* kLdMatrixName = "LdMatrix";
constexpr const char* kMmaName = "MmaM16N8K16";

// These have no mask: the whole warp takes part.
void CheckWholeWarp(BlockExecutor& executor, const char* name, Site site) {
  if (executor.LanesOf(executor.thread().warp()) == ~0u) return;
  executor.Report(std::string(name) + " in a warp of fewer than 32 lanes", site);
  executor.Leave();
}

}  // namespace

void LdMatrix(unsigned* registers, bool transposed, const void* row, Site site) {
  const InLibrary in_library;
  CheckWholeWarp(*running.executor, kLdMatrixName, site);
  LdMatrixOperands operands{registers, transposed, row, site};
  running.executor->Meet({kLdMatrixName, site, ~0u}, &operands, &CompleteLdMatrix);
}

void Mma(bool is_bf16, int m, int n, float* d, const unsigned* a, const unsigned* b, Site site) {
  const InLibrary in_library;
  CheckWholeWarp(*running.executor, kMmaName, site);
  MmaOperands operands{is_bf16, m, n, d, a, b};
  running.executor->Meet({kMmaName, site, ~0u}, &operands, &CompleteMma);
}

}  // namespace ringfill::cuda_emulation
