#include "engine/compute/cpu/cpu_device.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/compute/cpu/attend_rows.h"
#include "engine/compute/cpu/output_head.h"
#include "engine/compute/cpu/row_layers.h"

namespace ringfill {
namespace {

// Until somebody sets another.
constexpr Duration kDefaultWaitLimit = std::chrono::minutes(1);

const float* Floats(const std::byte* p) { return reinterpret_cast<const float*>(p); }
float* Floats(std::byte* p) { return reinterpret_cast<float*>(p); }

}  // namespace

CpuDevice::CpuDevice(CpuModel& model, const CpuDeviceOptions& options)
    : rank_(model, options.pages, options.threads, options.spin_rounds),
      tokens_(rank_),
      wait_limit_(kDefaultWaitLimit),
      stream_(options.make_stream(model.clock(), &trace_)) {}

CpuDevice::~CpuDevice() = default;

template <typename Work>
void CpuDevice::Queue(const OpLabel& label, Work work) {
  stream_->Enqueue(label, [work = std::move(work)]() mutable -> absl::Status {
    work();
    return absl::OkStatus();
  });
}

absl::StatusOr<DeviceBuffer> CpuDevice::Allocate(size_t bytes, std::string_view what) {
  if (bytes == 0) return DeviceBuffer();
  auto memory = std::make_shared<AlignedBuffer>(bytes);
  std::byte* data = memory->data();
  rank_.ledger->Add(MemoryPool::kBuffers, what, bytes);
  auto free = [memory = std::move(memory), ledger = rank_.ledger, what = std::string(what),
               bytes](std::byte*) mutable {
    memory.reset();
    ledger->Remove(what, bytes);
  };
  return DeviceBuffer(data, bytes, std::move(free));
}

WorkCounters CpuDevice::TakeCounters() {
  WorkCounters out{.product_rows = rank_.product_rows.exchange(0)};
  rank_.seen.TakeInto(out);
  return out;
}

void CpuDevice::PoisonPages(std::vector<PageId> pages) {
  Queue({.kind = OpKind::kStoreKv}, [this, pages = std::move(pages)] {
    for (PageId page : pages) rank_.pool.Poison(page);
  });
}

size_t CpuDevice::QueryBytes(int64_t rows) const {
  return static_cast<size_t>(rows * rank_.model.config().q_width()) *
         DTypeBytes(rank_.model.kv_shape().type);
}

size_t CpuDevice::StateBytes(int64_t rows) const {
  const ModelConfig& config = rank_.model.config();
  return static_cast<size_t>(rows * config.heads * (2 + config.head_dim)) * sizeof(float);
}

size_t CpuDevice::KvRowBytes() const {
  return 2 * static_cast<size_t>(rank_.model.config().kv_width()) *
         DTypeBytes(rank_.model.kv_shape().type);
}

size_t CpuDevice::AngleBytes(int64_t rows) const {
  return static_cast<size_t>(rows * rank_.model.forward().rope().rope_dims()) * sizeof(float);
}

void CpuDevice::EmbedRows(std::shared_ptr<const RowBatch> batch, const RowBuffers& buffers) {
  Queue({.kind = OpKind::kEmbed},
        [this, batch = std::move(batch), buffers] { ringfill::EmbedRows(rank_, *batch, buffers); });
}

void CpuDevice::RunLayers(const LayersArgs& args) {
  const int layer = args.finish >= 0 ? args.finish : args.project;
  stream_->Enqueue({.kind = OpKind::kLayers, .layer = layer}, [this, args, limit = wait_limit_] {
    return ringfill::RunLayers(rank_, args, limit);
  });
}

void CpuDevice::AbandonLayers(int layer) {
  Queue({.kind = OpKind::kLayers, .layer = layer},
        [this, layer] { rank_.model.weights().Release(layer); });
}

void CpuDevice::CopyPages(int layer, std::shared_ptr<const std::vector<PageId>> pages,
                          std::byte* shard) {
  const auto bytes = static_cast<int64_t>(pages->size() * rank_.model.geometry().LayerBytes());
  Queue({.kind = OpKind::kCopyKv, .layer = layer, .bytes = bytes},
        [this, layer, pages = std::move(pages), shard] {
          ringfill::CopyPages(rank_, layer, *pages, shard);
        });
}

void CpuDevice::StoreRows(int layer, std::shared_ptr<const std::vector<KvStore>> stores,
                          const std::byte* inbox) {
  int64_t rows = 0;
  for (const KvStore& store : *stores) rows += store.rows;
  const auto bytes = rows * static_cast<int64_t>(KvRowBytes());
  Queue({.kind = OpKind::kStoreKv, .layer = layer, .bytes = bytes},
        [this, layer, stores = std::move(stores), inbox] {
          ringfill::StoreRows(rank_, layer, *stores, inbox);
        });
}

void CpuDevice::WriteHeader(const RoundHeader& header, std::byte* to) {
  Queue({.kind = OpKind::kHeader, .layer = static_cast<int>(header.layer)},
        [header, to] { std::memcpy(to, &header, sizeof(header)); });
}

void CpuDevice::ForwardHeader(const RoundHeader& header, std::byte* at) {
  Queue({.kind = OpKind::kHeader, .layer = static_cast<int>(header.layer)}, [header, at] {
    RoundHeader next = header;
    RoundHeader received;
    std::memcpy(&received, at, sizeof(received));
    next.stop_mask = received.stop_mask;
    std::memcpy(at, &next, sizeof(next));
  });
}

void CpuDevice::CheckHeader(const RoundHeader& expected, const std::byte* at,
                            std::shared_ptr<LayerFlags> flags) {
  stream_->Enqueue({.kind = OpKind::kHeader, .layer = static_cast<int>(expected.layer)},
                   [expected, at, flags = std::move(flags)] {
                     RoundHeader got;
                     std::memcpy(&got, at, sizeof(got));
                     RF_RETURN_IF_ERROR(CheckRoundHeader(expected, got));
                     if (flags != nullptr) flags->stop_mask.fetch_or(got.stop_mask);
                     return absl::OkStatus();
                   });
}

void CpuDevice::Attend(const AttendArgs& args) {
  Queue(args.label, [this, args] { AttendRows(rank_, args); });
}

void CpuDevice::MergeState(const OpLabel& label, const std::byte* from, std::byte* into,
                           int64_t rows) {
  Queue(label, [this, from, into, rows] { MergeStates(rank_, from, into, rows); });
}

void CpuDevice::HiddenRows(const std::byte* x, std::vector<int64_t> rows, float* out) {
  Queue({.kind = OpKind::kHidden}, [this, x, rows = std::move(rows), out] {
    ringfill::HiddenRows(rank_, Floats(x), rows, out);
  });
}

void CpuDevice::ScoreRows(const std::byte* x, std::vector<ScoreRow> rows, float* out) {
  Queue({.kind = OpKind::kScore}, [this, x, rows = std::move(rows), out] {
    ringfill::ScoreRows(rank_, Floats(x), rows, out);
  });
}

void CpuDevice::Logits(const float* hidden, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
                       float* out) {
  Queue({.kind = OpKind::kLogits}, [this, hidden, rows, vocab_begin, vocab_end, out] {
    ringfill::Logits(rank_, hidden, rows, vocab_begin, vocab_end, out);
  });
}

size_t CpuDevice::TokenBytes(TokenStage stage, int64_t tokens, int ranks) const {
  return TokenPass::StageBytes(rank_.model.config(), stage, tokens, ranks);
}

void CpuDevice::BeginTokens(std::shared_ptr<const TokenBatch> batch) {
  Queue({.kind = OpKind::kEmbed}, [this, batch = std::move(batch)] { tokens_.Begin(batch); });
}

void CpuDevice::StopTokens(std::shared_ptr<const TokenBatch> rest) {
  Queue({.kind = OpKind::kEmbed}, [this, rest = std::move(rest)] { tokens_.Stop(rest); });
}

void CpuDevice::TokenQkv(int layer, std::byte* send) {
  Queue({.kind = OpKind::kTokenQkv, .layer = layer},
        [this, layer, send] { tokens_.Qkv(layer, Floats(send)); });
}

void CpuDevice::TokenAttend(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenAttend, .layer = layer},
        [this, layer, gathered, send] { tokens_.Attend(layer, Floats(gathered), Floats(send)); });
}

void CpuDevice::TokenOutput(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenOutput, .layer = layer},
        [this, layer, gathered, send] { tokens_.Output(layer, Floats(gathered), Floats(send)); });
}

void CpuDevice::TokenFfn(int layer, const std::byte* gathered, std::byte* send) {
  Queue({.kind = OpKind::kTokenFfn, .layer = layer},
        [this, layer, gathered, send] { tokens_.Ffn(layer, Floats(gathered), Floats(send)); });
}

void CpuDevice::EndTokenLayer(int layer, const std::byte* gathered) {
  Queue({.kind = OpKind::kTokenEnd, .layer = layer},
        [this, gathered] { tokens_.EndLayer(Floats(gathered)); });
}

void CpuDevice::HiddenTokens(float* out) {
  Queue({.kind = OpKind::kHidden}, [this, out] { tokens_.Hidden(out); });
}

}  // namespace ringfill
