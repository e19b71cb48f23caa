#include "engine/compute/cuda/cuda_device.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/cuda_head.h"
#include "engine/compute/cuda/cuda_rows.h"
#include "engine/compute/cuda/kernels/attention.h"

namespace ringfill {
namespace {

const float* Floats(const std::byte* p) { return reinterpret_cast<const float*>(p); }
float* Floats(std::byte* p) { return reinterpret_cast<float*>(p); }

}  // namespace

absl::Status CudaDevice::CheckModel(const ModelConfig& config) {
  if (gpu::AttentionTakesHeadDim(config.head_dim)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has heads of ", config.head_dim,
                   " dimensions; on GPUs 64, 80, 96, 128 and 256 are supported: set "
                   "ranks.backend: cpu"));
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Make(std::shared_ptr<const Model> model,
                                                             const CudaRankOptions& options) {
  RF_RETURN_IF_ERROR(CheckModel(model->config()));
  auto trace = std::make_unique<TraceBuffer>();
  RF_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream,
                      CudaStream::Make(options.gpu.index, trace.get()));
  RF_ASSIGN_OR_RETURN(std::unique_ptr<CudaRank> rank, CudaRank::Make(*model, options, *stream));
  return std::unique_ptr<CudaDevice>(
      new CudaDevice(std::move(model), std::move(trace), std::move(stream), std::move(rank)));
}

CudaDevice::CudaDevice(std::shared_ptr<const Model> model, std::unique_ptr<TraceBuffer> trace,
                       std::unique_ptr<CudaStream> stream, std::unique_ptr<CudaRank> rank)
    : model_(std::move(model)),
      trace_(std::move(trace)),
      stream_(std::move(stream)),
      rank_(std::move(rank)),
      tokens_(*rank_) {}

CudaDevice::~CudaDevice() { stream_->Stop(); }

template <typename Work>
void CudaDevice::Queue(const OpLabel& label, Work work) {
  stream_->Enqueue(label, [work = std::move(work)](cudaStream_t) { return work(); });
}

absl::StatusOr<DeviceBuffer> CudaDevice::Allocate(size_t bytes, std::string_view what) {
  absl::StatusOr<DeviceBuffer> buffer = rank_->memory.Allocate(bytes, what, MemoryPool::kBuffers);
  if (!absl::IsResourceExhausted(buffer.status())) return buffer;
  // Again, when the stream has come to what frees memory.
  RF_RETURN_IF_ERROR(stream_->Synchronize(Clock::Real().Now() + wait_limit_));
  return rank_->memory.Allocate(bytes, what, MemoryPool::kBuffers);
}

void CudaDevice::Recover() {
  const bool no_memory = absl::IsResourceExhausted(stream_->status());
  stream_->Clear();
  if (!no_memory || !stream_->status().ok()) return;
  rank_->DropScratch();
  tokens_.DropGraphs();
  // It is free when the stream has come to it; a failure shows in the next step.
  stream_->Synchronize(Clock::Real().Now() + wait_limit_).IgnoreError();
}

WorkCounters CudaDevice::TakeCounters() {
  WorkCounters out{.product_rows = rank_->product_rows.exchange(0)};
  rank_->seen.TakeInto(out);
  return out;
}

void CudaDevice::PoisonPages(std::vector<PageId> pages) {
  Queue({.kind = OpKind::kStoreKv},
        [this, pages = std::move(pages)] { return QueuePoison(*rank_, pages); });
}

size_t CudaDevice::QueryBytes(int64_t rows) const {
  return static_cast<size_t>(rows * rank_->config.q_width()) * sizeof(Bf16);
}

size_t CudaDevice::StateBytes(int64_t rows) const {
  const ModelConfig& config = rank_->config;
  return static_cast<size_t>(rows * config.heads * (2 + config.head_dim)) * sizeof(float);
}

size_t CudaDevice::KvRowBytes() const {
  return 2 * static_cast<size_t>(rank_->config.kv_width()) * sizeof(Bf16);
}

size_t CudaDevice::AngleBytes(int64_t rows) const {
  return static_cast<size_t>(rows * rank_->config.rope.rope_dims) * sizeof(float);
}

void CudaDevice::EmbedRows(std::shared_ptr<const RowBatch> batch, const RowBuffers& buffers) {
  Queue({.kind = OpKind::kEmbed}, [this, batch = std::move(batch), buffers] {
    return QueueEmbedRows(*rank_, batch, buffers);
  });
}

void CudaDevice::RunLayers(const LayersArgs& args) {
  const int layer = args.finish >= 0 ? args.finish : args.project;
  Queue({.kind = OpKind::kLayers, .layer = layer},
        [this, args] { return QueueLayers(*rank_, args); });
}

void CudaDevice::AbandonLayers(int) {}

void CudaDevice::CopyPages(int layer, std::shared_ptr<const std::vector<PageId>> pages,
                           std::byte* shard) {
  const auto bytes = static_cast<int64_t>(pages->size() * rank_->geometry.LayerBytes());
  Queue({.kind = OpKind::kCopyKv, .layer = layer, .bytes = bytes},
        [this, layer, pages = std::move(pages), shard] {
          return QueueCopyPages(*rank_, layer, *pages, shard);
        });
}

void CudaDevice::StoreRows(int layer, std::shared_ptr<const std::vector<KvStore>> stores,
                           const std::byte* inbox) {
  int64_t rows = 0;
  for (const KvStore& store : *stores) rows += store.rows;
  const auto bytes = rows * static_cast<int64_t>(KvRowBytes());
  Queue({.kind = OpKind::kStoreKv, .layer = layer, .bytes = bytes},
        [this, layer, stores = std::move(stores), inbox] {
          return QueueStoreRows(*rank_, layer, *stores, inbox);
        });
}

void CudaDevice::WriteHeader(const RoundHeader& header, std::byte* to) {
  Queue({.kind = OpKind::kHeader, .layer = static_cast<int>(header.layer)},
        [this, header, to] { return QueueWriteHeader(*rank_, header, to, false); });
}

void CudaDevice::ForwardHeader(const RoundHeader& header, std::byte* at) {
  Queue({.kind = OpKind::kHeader, .layer = static_cast<int>(header.layer)},
        [this, header, at] { return QueueWriteHeader(*rank_, header, at, true); });
}

void CudaDevice::CheckHeader(const RoundHeader& expected, const std::byte* at,
                             std::shared_ptr<LayerFlags> flags) {
  Queue({.kind = OpKind::kHeader, .layer = static_cast<int>(expected.layer)},
        [this, expected, at, flags = std::move(flags)] {
          return QueueCheckHeader(*rank_, expected, at, flags);
        });
}

void CudaDevice::Attend(const AttendArgs& args) {
  Queue(args.label, [this, args] { return QueueAttend(*rank_, args); });
}

void CudaDevice::MergeState(const OpLabel& label, const std::byte* from, std::byte* into,
                            int64_t rows) {
  Queue(label, [this, from, into, rows] { return QueueMerge(*rank_, from, into, rows); });
}

void CudaDevice::HiddenRows(const std::byte* x, std::vector<int64_t> rows, float* out) {
  Queue({.kind = OpKind::kHidden}, [this, x, rows = std::move(rows), out] {
    return QueueHiddenRows(*rank_, Floats(x), rows, out);
  });
}

void CudaDevice::ScoreRows(const std::byte* x, std::vector<ScoreRow> rows, float* out) {
  Queue({.kind = OpKind::kScore}, [this, x, rows = std::move(rows), out] {
    return QueueScoreRows(*rank_, Floats(x), rows, out);
  });
}

void CudaDevice::Logits(const float* hidden, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
                        float* out) {
  Queue({.kind = OpKind::kLogits}, [this, hidden, rows, vocab_begin, vocab_end, out] {
    return QueueLogits(*rank_, hidden, rows, vocab_begin, vocab_end, out);
  });
}

size_t CudaDevice::TokenBytes(TokenStage stage, int64_t tokens, int ranks) const {
  return CudaTokens::StageBytes(rank_->config, stage, tokens, ranks);
}

void CudaDevice::BeginTokens(std::shared_ptr<const TokenBatch> batch) {
  Queue({.kind = OpKind::kEmbed},
        [this, batch = std::move(batch)] { return tokens_.Begin(batch); });
}

void CudaDevice::StopTokens(std::shared_ptr<const TokenBatch> rest) {
  Queue({.kind = OpKind::kEmbed}, [this, rest = std::move(rest)] { return tokens_.Stop(rest); });
}

void CudaDevice::TokenQkv(int layer, std::byte* send) {
  Queue({.kind = OpKind::kTokenQkv, .layer = layer},
        [this, layer, send] { return tokens_.Qkv(layer, Floats(send)); });
}

void CudaDevice::TokenAttend(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenAttend, .layer = layer}, [this, layer, gathered, send] {
    return tokens_.Attend(layer, Floats(gathered), Floats(send));
  });
}

void CudaDevice::TokenOutput(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenOutput, .layer = layer}, [this, layer, gathered, send] {
    return tokens_.Output(layer, Floats(gathered), Floats(send));
  });
}

void CudaDevice::TokenFfn(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenFfn, .layer = layer}, [this, layer, gathered, send] {
    return tokens_.Ffn(layer, Floats(gathered), Floats(send));
  });
}

void CudaDevice::EndTokenLayer(int layer, const std::byte* gathered) {
  Queue({.kind = OpKind::kTokenEnd, .layer = layer},
        [this, gathered] { return tokens_.EndLayer(Floats(gathered)); });
}

void CudaDevice::HiddenTokens(float* out) {
  Queue({.kind = OpKind::kHidden}, [this, out] { return tokens_.Hidden(out); });
}

}  // namespace ringfill
