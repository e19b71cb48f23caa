// GFLOP/s of the attention kernels, one thread: 4 * rows * head_dim * keys operations a call. In
// the thread's own CPU time, so that other processes on the machine disturb little.
//
//   attention_bench [head_dim [page_tokens]]
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "engine/compute/attention/attention.h"

namespace ringfill {
namespace {

constexpr double kSecondsPerCase = 0.4;

struct Case {
  KvBlockShape shape;
  int tokens;
  int group;
  int64_t keys;
};

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

AlignedBuffer RandomPages(const Case& c) {
  const size_t dim = c.shape.head_dim;
  const size_t page_tokens = c.shape.page_tokens;
  const size_t pages = (c.keys + page_tokens - 1) / page_tokens;
  AlignedBuffer out(2 * pages * c.shape.BlockBytes());
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> kv(page_tokens * dim);
  for (float& x : kv) x = normal(rng);
  for (size_t p = 0; p < pages; ++p) {
    std::byte* page = out.data() + 2 * p * c.shape.BlockBytes();
    StoreKv(c.shape, 0, c.shape.page_tokens, kv.data(), kv.data(), dim, page,
            page + c.shape.BlockBytes());
  }
  return out;
}

// Best of the repeats that fit in the time, in GFLOP/s.
double Measure(const Case& c, const AttentionKernel& kernel) {
  const int rows = c.tokens * c.group;
  const int dim = c.shape.head_dim;
  const size_t block = c.shape.BlockBytes();
  const AlignedBuffer pages = RandomPages(c);
  const AlignedBuffer scratch(kernel.ScratchBytes(rows));
  std::vector<float> q(static_cast<size_t>(rows) * dim, 0.25f), max(rows), sum(rows), acc(q.size());
  std::vector<std::byte> packed(q.size() * DTypeBytes(c.shape.type));
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& x : q) x = normal(rng);
  PackQueries(c.shape.type, dim, q.data(), q.size(), packed.data());
  const std::vector<int64_t> visible(c.tokens, c.keys);
  const AttentionTile tile{packed.data(),  c.tokens,
                           c.group,        {pages.data(), nullptr, 2 * block, 0, block},
                           visible.data(), {max.data(), sum.data(), acc.data()}};
  const double start = CpuSeconds();
  double best = 1e30;
  while (CpuSeconds() - start < kSecondsPerCase) {
    ClearSoftmax(tile.state, rows, dim);
    const double before = CpuSeconds();
    kernel.Run(tile, scratch.data());
    best = std::min(best, CpuSeconds() - before);
  }
  return 4e-9 * rows * dim * static_cast<double>(c.keys) / best;
}

int Main(int argc, char** argv) {
  const int dim = argc > 1 ? std::atoi(argv[1]) : 64;
  const int page = argc > 2 ? std::atoi(argv[2]) : 64;
  std::printf("%-22s %5s %6s %6s %10s\n", "kernel", "rows", "keys", "dim", "GFLOP/s");
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const CpuIsa isa : AvailableCpuIsas()) {
      const KvBlockShape shape{type, dim, page};
      const auto kernel = MakeAttentionKernel(shape, isa);
      for (const auto& [tokens, keys] : {std::pair{64, 2048}, {64, 8192}, {1, 8192}}) {
        const double rate = Measure({shape, tokens, 3, keys}, *kernel);
        std::printf("%-22s %5d %6d %6d %10.1f\n", kernel->name().data(), 3 * tokens, keys, dim,
                    rate);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) { return ringfill::Main(argc, argv); }
