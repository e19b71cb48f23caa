#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/grid.h"
#include "engine/compute/cuda/kernels/kv_pages.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWordBytes = 16;

// A block copies a page.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void CopyPagesKernel(CopyPagesArgs args) {
  const int64_t i = blockIdx.x;
  const std::byte* const from =
      args.pool + static_cast<int64_t>(args.pages[i]) * args.page_stride + args.layer_offset;
  std::byte* const to = args.shard + i * args.layer_bytes;
  for (int64_t at = threadIdx.x * int64_t{kWordBytes}; at < args.layer_bytes;
       at += int64_t{kThreads} * kWordBytes) {
    Store(to + at, LoadStreaming<uint4>(from + at));
  }
}

// A block stores a row.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void StoreRowsKernel(StoreRowsArgs args) {
  const int64_t row = blockIdx.x;
  const KvTarget target = args.targets[row];
  if (target.page == KvTarget::kNoPage) return;
  const int head_bytes = args.head_dim * 2;
  const int words = head_bytes / kWordBytes;  // of a head
  const int64_t row_bytes = static_cast<int64_t>(args.kv_heads) * head_bytes;
  std::byte* const page =
      args.pages.base + static_cast<int64_t>(target.page) * args.pages.page_stride;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * args.kv_heads * words; i += kThreads) {
    const int head = i / words % args.kv_heads;
    const bool is_v = i / words >= args.kv_heads;
    const int64_t within = i % words * kWordBytes;
    const std::byte* const from =
        args.inbox + (row * 2 + (is_v ? 1 : 0)) * row_bytes + head * head_bytes + within;
    std::byte* const to =
        page + (is_v ? args.pages.v_offset : args.pages.k_offset) +
        (static_cast<int64_t>(head) * args.pages.page_tokens + target.token_in_page) * head_bytes +
        within;
    Store(to, Load<uint4>(from));
  }
}

// A block fills a page.
RF_KERNEL RF_LAUNCH_BOUNDS(kThreads) void PoisonPagesKernel(std::byte* pool, int64_t page_stride,
                                                            const uint32_t* pages) {
  std::byte* const page = pool + static_cast<int64_t>(pages[blockIdx.x]) * page_stride;
  for (int64_t at = threadIdx.x * int64_t{kWordBytes}; at < page_stride;
       at += int64_t{kThreads} * kWordBytes) {
    Store(page + at, uint4{~0u, ~0u, ~0u, ~0u});
  }
}

}  // namespace

int CopyPages(const CopyPagesArgs& args, KernelStream stream) {
  if (args.count == 0) return cudaSuccess;
  return Launch(CopyPagesKernel, BlocksOf(args.count, 1), dim3(kThreads), 0, stream, args);
}

int StoreRows(const StoreRowsArgs& args, KernelStream stream) {
  if (args.rows == 0) return cudaSuccess;
  return Launch(StoreRowsKernel, BlocksOf(args.rows, 1), dim3(kThreads), 0, stream, args);
}

int PoisonPages(std::byte* pool, int64_t page_stride, const uint32_t* pages, int64_t count,
                KernelStream stream) {
  if (count == 0) return cudaSuccess;
  return Launch(PoisonPagesKernel, BlocksOf(count, 1), dim3(kThreads), 0, stream, pool, page_stride,
                pages);
}

}  // namespace ringfill::gpu
