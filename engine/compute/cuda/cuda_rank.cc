#include "engine/compute/cuda/cuda_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "engine/compute/cuda/fused_check.h"

namespace ringfill {
namespace {

// Where the K and V of a batch's rows go.
std::vector<gpu::KvTarget> TargetsOf(const RowBatch& batch) {
  std::vector<gpu::KvTarget> targets(static_cast<size_t>(batch.rows()));
  for (const KvStore& store : batch.stores) {
    for (int i = 0; i < store.rows; ++i) {
      gpu::KvTarget& target = targets[static_cast<size_t>(store.row + i)];
      target.page = store.page;
      target.token_in_page = store.token_in_page + i;
    }
  }
  for (const KvSend& send : batch.sends) {
    for (int i = 0; i < send.rows; ++i) {
      targets[static_cast<size_t>(send.row + i)].outbox_slot = send.slot + i;
    }
  }
  return targets;
}

}  // namespace

CudaRank::CudaRank(const Model& of, const CudaRankOptions& options, CudaStream& on)
    : model(of),
      config(of.config()),
      gpu(options.gpu),
      geometry(CudaKvGeometry(of.config(), options.page_tokens)),
      pages(options.pages),
      stream(on),
      memory(on),
      upload(memory, "lists"),
      report(memory, "lists"),
      normed(memory, "product scratch"),
      qkv(memory, "product scratch"),
      gate_up(memory, "product scratch"),
      out(memory, "product scratch"),
      attention(memory, "attention scratch"),
      logits(memory, "output head"),
      head_rows(memory, "output head"),
      batch_lists_(memory, "lists") {}

absl::StatusOr<std::unique_ptr<CudaRank>> CudaRank::Make(const Model& model,
                                                         const CudaRankOptions& options,
                                                         CudaStream& stream) {
  std::unique_ptr<CudaRank> rank(new CudaRank(model, options, stream));
  RF_RETURN_IF_ERROR(rank->Prepare(options));
  return rank;
}

absl::Status CudaRank::Prepare(const CudaRankOptions& options) {
  if (options.make_products) {
    RF_ASSIGN_OR_RETURN(products, options.make_products(memory));
  } else {
    products = MakePlainProducts(gpu.index);
  }
  RF_ASSIGN_OR_RETURN(weights, CudaWeights::Load(model, options.weights, memory, options.stopped));
  RF_RETURN_IF_ERROR(stream.KeepPinned(kPinnedListBytes, kPinnedLists));
  RF_RETURN_IF_ERROR(stream.KeepPinned(PinnedLogitBytes(config), 1));
  RF_ASSIGN_OR_RETURN(slab, memory.Allocate(static_cast<size_t>(pages) * geometry.PageBytes(),
                                            "kv pages", MemoryPool::kKvPages));
  ChooseAttention();
  const Rope rope(config.rope);
  const size_t bytes = rope.frequency().size() * sizeof(double);
  RF_ASSIGN_OR_RETURN(frequency, memory.Allocate(std::max<size_t>(bytes, 1), "lists"));
  stream.Enqueue({.kind = OpKind::kEmbed}, [&](cudaStream_t on) {
    std::byte* const pinned = stream.Pinned(bytes);
    std::memcpy(pinned, rope.frequency().data(), bytes);
    return CudaStatus(cudaMemcpyAsync(frequency.data(), pinned, bytes, cudaMemcpyHostToDevice, on),
                      "cudaMemcpyAsync", gpu.index);
  });
  return stream.Synchronize(Clock::Real().Now() + kTrialLimit);
}

absl::Status CudaRank::TryFused() {
  RF_ASSIGN_OR_RETURN(
      fused, FusedPrefill::Make(config, {.device = gpu.index, .geometry = geometry, .pages = pages},
                                memory));
  return CheckFused(*this);
}

void CudaRank::ChooseAttention() {
  const absl::Status status = TryFused();
  if (status.ok()) {
    Log(LogLevel::kInfo, "prefill attention by a library",
        {{"gpu", Describe(gpu)}, {"library", fused->name()}});
    return;
  }
  fused = nullptr;
  stream.Clear();
  // Not to be had is as good as not built; anything else somebody should look at.
  Log(absl::IsUnimplemented(status) ? LogLevel::kInfo : LogLevel::kWarning,
      "prefill attention by our own kernels alone",
      {{"gpu", Describe(gpu)}, {"why", std::string(status.message())}});
}

absl::StatusOr<CudaRank::Rows> CudaRank::UseBatch(const std::shared_ptr<const RowBatch>& batch) {
  if (batch_ == batch) return rows_;
  batch_ = nullptr;
  Upload lists(stream, batch_lists_);
  const auto tokens = lists.Add(batch->token);
  const auto positions = lists.Add(batch->position);
  const auto chunks = lists.Add(batch->chunk);
  const auto targets = lists.Add(TargetsOf(*batch));
  RF_RETURN_IF_ERROR(lists.Send());
  rows_ = {lists.At<const int32_t>(tokens), lists.At<const int64_t>(positions),
           lists.At<const int32_t>(chunks), lists.At<const gpu::KvTarget>(targets)};
  batch_ = batch;
  return rows_;
}

absl::Status CudaRank::CopyOut(const std::byte* from, size_t bytes,
                               std::function<absl::Status(const std::byte*)> use) {
  std::byte* const pinned = stream.Pinned(bytes);
  RF_RETURN_IF_CUDA_ERROR(
      gpu.index, cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, stream.get()));
  stream.Then([use = std::move(use), pinned] { return use(pinned); });
  return absl::OkStatus();
}

absl::Status CudaRank::CopyOut(const std::byte* from, size_t bytes, void* out_bytes) {
  return CopyOut(from, bytes, [bytes, out_bytes](const std::byte* got) {
    std::memcpy(out_bytes, got, bytes);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::byte*> CudaRank::ZeroReport(size_t bytes) {
  RF_ASSIGN_OR_RETURN(std::byte* const at, report.Reserve(std::max<size_t>(bytes, 256)));
  RF_RETURN_IF_CUDA_ERROR(gpu.index, cudaMemsetAsync(at, 0, bytes, stream.get()));
  return at;
}

gpu::KvPages CudaRank::Pages(int layer) const {
  return {slab.data(), static_cast<int64_t>(geometry.PageBytes()),
          static_cast<int64_t>(geometry.KOffset(layer, 0)),
          static_cast<int64_t>(geometry.VOffset(layer, 0)), geometry.page_tokens};
}

gpu::SoftmaxArrays CudaRank::States(const std::byte* state, int64_t tokens) const {
  auto* const at = reinterpret_cast<float*>(const_cast<std::byte*>(state));
  const int64_t rows = tokens * config.heads;
  return {at, at + rows, at + 2 * rows};
}

}  // namespace ringfill
