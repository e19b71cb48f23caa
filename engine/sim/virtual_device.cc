#include "engine/sim/virtual_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace ringfill {
namespace {

// Batches that are remembered; a step has two a source rank.
constexpr size_t kMaxCounted = 256;

}  // namespace

VirtualDevice::VirtualDevice(const ModelShape& shape, const DeviceFigures& figures, int64_t pages,
                             RankTime& time)
    : shape_(shape),
      cost_(shape, figures),
      pages_(pages),
      stream_(time, &trace_),
      memory_(std::make_shared<std::unordered_map<std::string, Usage>>()) {}

absl::StatusOr<DeviceBuffer> VirtualDevice::Allocate(size_t bytes, std::string_view what) {
  const size_t mapped = std::max<size_t>(bytes, 1);
  void* at = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RF_CHECK(at != MAP_FAILED);
  Usage& usage = (*memory_)[std::string(what)];
  usage.bytes += bytes;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
  return DeviceBuffer(static_cast<std::byte*>(at), bytes,
                      [memory = memory_, name = std::string(what), bytes, mapped](std::byte* data) {
                        munmap(data, mapped);
                        (*memory)[name].bytes -= bytes;
                      });
}

std::vector<Device::MemoryUse> VirtualDevice::Memory() const {
  std::vector<MemoryUse> out;
  for (const auto& [name, usage] : *memory_) {
    out.push_back({name, MemoryPool::kBuffers, usage.bytes, usage.peak_bytes});
  }
  std::sort(out.begin(), out.end(),
            [](const MemoryUse& a, const MemoryUse& b) { return a.what < b.what; });
  return out;
}

void VirtualDevice::Recover() {
  stream_.Clear();
  counted_.clear();
  tokens_ = nullptr;
}

void VirtualDevice::RunOp(OpKind kind, int layer, double seconds, int64_t bytes) {
  OpLabel label;
  label.kind = kind;
  label.layer = layer;
  label.bytes = bytes;
  stream_.Run(label, seconds);
}

void VirtualDevice::PoisonPages(std::vector<PageId> pages) {
  const double bytes = static_cast<double>(pages.size()) * static_cast<double>(shape_.layers) *
                       static_cast<double>(PageLayerBytes(shape_));
  RunOp(OpKind::kStoreKv, -1, cost_.Copy(bytes));
}

size_t VirtualDevice::QueryBytes(int64_t rows) const {
  return static_cast<size_t>(ringfill::QueryBytes(shape_, rows));
}

size_t VirtualDevice::StateBytes(int64_t rows) const {
  return static_cast<size_t>(ringfill::StateBytes(shape_, rows));
}

size_t VirtualDevice::KvRowBytes() const {
  return static_cast<size_t>(ringfill::KvRowBytes(shape_));
}

size_t VirtualDevice::AngleBytes(int64_t rows) const {
  return static_cast<size_t>(rows * shape_.head_dim) * sizeof(float);
}

void VirtualDevice::EmbedRows(std::shared_ptr<const RowBatch> batch, const RowBuffers&) {
  counted_.clear();  // a new step
  RunOp(OpKind::kEmbed, -1, cost_.Embed(batch->rows()));
}

void VirtualDevice::RunLayers(const LayersArgs& args) {
  int64_t finish_rows = args.finish >= 0 ? 0 : -1;
  int64_t project_rows = args.project >= 0 ? 0 : -1;
  std::span<const RowTile> tiles;  // of no batch: weights alone
  if (args.batch != nullptr) tiles = args.batch->tiles;
  for (const RowTile& tile : tiles) {
    if ((tile.chunks & ~args.stopped) == 0) continue;
    const int64_t rounded = cost_.RoundRows(tile.rows);
    if (args.finish >= 0 && (tile.wanted || !args.only_wanted)) {
      finish_rows += rounded;
      counters_.product_rows += tile.rows;
    }
    if (args.project >= 0) {
      project_rows += rounded;
      counters_.product_rows += tile.rows;
    }
  }
  RunOp(OpKind::kLayers, args.project >= 0 ? args.project : args.finish,
        cost_.Layers(finish_rows, project_rows));
}

void VirtualDevice::AbandonLayers(int) {}

void VirtualDevice::CopyPages(int layer, std::shared_ptr<const std::vector<PageId>> pages,
                              std::byte*) {
  const int64_t bytes = static_cast<int64_t>(pages->size()) * PageLayerBytes(shape_);
  RunOp(OpKind::kCopyKv, layer, cost_.Copy(static_cast<double>(bytes)), bytes);
}

void VirtualDevice::StoreRows(int layer, std::shared_ptr<const std::vector<KvStore>> stores,
                              const std::byte*) {
  int64_t rows = 0;
  for (const KvStore& store : *stores) rows += store.rows;
  const int64_t bytes = rows * ringfill::KvRowBytes(shape_);
  RunOp(OpKind::kStoreKv, layer, cost_.Copy(static_cast<double>(bytes)), bytes);
}

void VirtualDevice::WriteHeader(const RoundHeader& header, std::byte*) {
  RunOp(OpKind::kHeader, static_cast<int>(header.layer), cost_.overhead());
}

void VirtualDevice::ForwardHeader(const RoundHeader& header, std::byte*) {
  RunOp(OpKind::kHeader, static_cast<int>(header.layer), cost_.overhead());
}

void VirtualDevice::CheckHeader(const RoundHeader& expected, const std::byte*,
                                std::shared_ptr<LayerFlags>) {
  RunOp(OpKind::kHeader, static_cast<int>(expected.layer), cost_.overhead());
}

VirtualDevice::AttendWork VirtualDevice::Count(const AttendArgs& args) const {
  AttendWork work;
  work.batch = args.batch;
  for (const QueryTile& tile : args.batch->tiles) {
    if ((args.stopped >> tile.chunk & 1) != 0 || (args.only_wanted && !tile.wanted)) continue;
    const int64_t* visible = args.batch->visible.data() + tile.row;
    double token_keys = 0;
    for (int t = 0; t < tile.tokens; ++t) {
      token_keys += static_cast<double>(KeysIn(tile.begin, visible[t]));
      work.seen.Add(visible[t] - tile.begin);
    }
    const int64_t tile_keys = KeysIn(tile.begin, visible[tile.tokens - 1]);
    work.seconds += cost_.AttendTile(token_keys, static_cast<double>(tile_keys));
  }
  return work;
}

void VirtualDevice::Attend(const AttendArgs& args) {
  AttendWork work;
  if (args.only_wanted || args.stopped != 0) {
    work = Count(args);
  } else {
    if (counted_.size() >= kMaxCounted) counted_.clear();
    AttendWork& known = counted_[args.batch.get()];
    if (known.batch == nullptr) known = Count(args);
    work = known;
  }
  CountSeen(work.seen);
  stream_.Run(args.label, cost_.overhead() + work.seconds);
}

void VirtualDevice::MergeState(const OpLabel& label, const std::byte*, std::byte*, int64_t rows) {
  stream_.Run(label, cost_.Copy(static_cast<double>(StateBytes(rows))));
}

void VirtualDevice::HiddenRows(const std::byte*, std::vector<int64_t> rows, float*) {
  RunOp(OpKind::kHidden, -1, cost_.Embed(static_cast<int64_t>(rows.size())));
}

void VirtualDevice::ScoreRows(const std::byte*, std::vector<ScoreRow> rows, float*) {
  RunOp(OpKind::kScore, -1, cost_.Score(static_cast<int64_t>(rows.size())));
}

void VirtualDevice::Logits(const float*, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
                           float*) {
  RunOp(OpKind::kLogits, -1, cost_.Logits(rows, vocab_end - vocab_begin));
}

size_t VirtualDevice::TokenBytes(TokenStage stage, int64_t tokens, int ranks) const {
  switch (stage) {
    case TokenStage::kQkv:
      return static_cast<size_t>(TokenQkvBytes(shape_, tokens, ranks));
    case TokenStage::kStates:
      return static_cast<size_t>(TokenStatesBytes(shape_, tokens));
    case TokenStage::kOutput:
      return static_cast<size_t>(TokenOutputBytes(shape_, tokens, ranks));
    case TokenStage::kFfn:
      return static_cast<size_t>(TokenFfnBytes(shape_, tokens));
  }
  return 0;
}

void VirtualDevice::BeginTokens(std::shared_ptr<const TokenBatch> batch) {
  tokens_ = std::move(batch);
  CountTokens();
  RunOp(OpKind::kEmbed, -1, cost_.Embed(tokens_->tokens()));
}

void VirtualDevice::StopTokens(std::shared_ptr<const TokenBatch> rest) {
  tokens_ = std::move(rest);
  CountTokens();
}

void VirtualDevice::CountSeen(const SeenKeys& seen) {
  counters_.attention_pairs += seen.pairs;
  counters_.merged_states += seen.merged_states;
  counters_.empty_states += seen.empty_states;
}

void VirtualDevice::CountTokens() {
  token_keys_ = token_tile_keys_ = 0;
  token_seen_ = {};
  const std::vector<int64_t>& visible = tokens_->visible;
  int64_t in_tile = 0;
  for (size_t t = 0; t < visible.size(); ++t) {
    const int64_t begin = tokens_->BeginOf(t);
    token_keys_ += static_cast<double>(KeysIn(begin, visible[t]));
    token_seen_.Add(visible[t] - begin);
    const bool ends_tile = ++in_tile == cost_.token_tile() || t + 1 == visible.size() ||
                           tokens_->run[t + 1] != tokens_->run[t] ||
                           tokens_->BeginOf(t + 1) != begin;
    if (!ends_tile) continue;
    token_tile_keys_ += static_cast<double>(KeysIn(begin, visible[t]));
    in_tile = 0;
  }
}

void VirtualDevice::TokenQkv(int layer, std::byte*) {
  RunOp(OpKind::kTokenQkv, layer, cost_.TokenQkv(tokens_->tokens(), tokens_->ranks));
}

void VirtualDevice::TokenAttend(int layer, const std::byte*, std::byte*) {
  CountSeen(token_seen_);
  RunOp(OpKind::kTokenAttend, layer,
        cost_.TokenAttend(tokens_->tokens(), token_keys_, token_tile_keys_));
}

void VirtualDevice::TokenOutput(int layer, const std::byte*, std::byte*) {
  RunOp(OpKind::kTokenOutput, layer, cost_.TokenOutput(tokens_->tokens(), tokens_->ranks));
}

void VirtualDevice::TokenFfn(int layer, const std::byte*, std::byte*) {
  RunOp(OpKind::kTokenFfn, layer, cost_.TokenFfn(tokens_->tokens(), tokens_->ranks));
}

void VirtualDevice::EndTokenLayer(int layer, const std::byte*) {
  RunOp(OpKind::kTokenEnd, layer, cost_.TokenEnd(tokens_->tokens(), tokens_->ranks));
}

void VirtualDevice::HiddenTokens(float*) {
  RunOp(OpKind::kHidden, -1, cost_.Embed(tokens_->tokens()));
}

}  // namespace ringfill
