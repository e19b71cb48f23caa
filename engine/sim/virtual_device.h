// A device that computes nothing: each operation takes the simulated time that a rank's figures and
// the batch's exact counts give it. Memory is address space that nobody may touch, so a host that
// reads a device's buffer faults.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/compute/device.h"
#include "engine/cost/op_cost.h"
#include "engine/sim/virtual_stream.h"

namespace ringfill {

class VirtualDevice : public Device {
 public:
  // `time` outlives the device and is shared with the rank's communicator (virtual_group.h).
  VirtualDevice(const ModelShape& shape, const DeviceFigures& figures, int64_t pages,
                RankTime& time);

  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, std::string_view what) override;
  std::vector<MemoryUse> Memory() const override;
  VirtualStream& stream() override { return stream_; }
  TraceBuffer& trace() override { return trace_; }
  WorkCounters TakeCounters() override { return std::exchange(counters_, {}); }
  void Recover() override;
  void Abort(absl::Status) override {}  // waits for nobody
  void SetWaitLimit(Duration) override {}
  int64_t pages() const override { return pages_; }
  void PoisonPages(std::vector<PageId> pages) override;

  size_t QueryBytes(int64_t rows) const override;
  size_t StateBytes(int64_t rows) const override;
  size_t KvRowBytes() const override;
  size_t AngleBytes(int64_t rows) const override;
  void EmbedRows(std::shared_ptr<const RowBatch> batch, const RowBuffers& buffers) override;
  void RunLayers(const LayersArgs& args) override;
  void AbandonLayers(int layer) override;
  void CopyPages(int layer, std::shared_ptr<const std::vector<PageId>> pages,
                 std::byte* shard) override;
  void StoreRows(int layer, std::shared_ptr<const std::vector<KvStore>> stores,
                 const std::byte* inbox) override;
  void WriteHeader(const RoundHeader& header, std::byte* to) override;
  void ForwardHeader(const RoundHeader& header, std::byte* at) override;
  void CheckHeader(const RoundHeader& expected, const std::byte* at,
                   std::shared_ptr<LayerFlags> flags) override;
  void Attend(const AttendArgs& args) override;
  void MergeState(const OpLabel& label, const std::byte* from, std::byte* into,
                  int64_t rows) override;
  void HiddenRows(const std::byte* x, std::vector<int64_t> rows, float* out) override;
  void ScoreRows(const std::byte* x, std::vector<ScoreRow> rows, float* out) override;
  void Logits(const float* hidden, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
              float* out) override;

  size_t TokenBytes(TokenStage stage, int64_t tokens, int ranks) const override;
  void BeginTokens(std::shared_ptr<const TokenBatch> batch) override;
  void StopTokens(std::shared_ptr<const TokenBatch> rest) override;
  void TokenQkv(int layer, std::byte* send) override;
  void TokenAttend(int layer, const std::byte* gathered, std::byte* send) override;
  void TokenOutput(int layer, const std::byte* gathered, std::byte* send) override;
  void TokenFfn(int layer, const std::byte* gathered, std::byte* send) override;
  void EndTokenLayer(int layer, const std::byte* gathered) override;
  void HiddenTokens(float* out) override;

 private:
  struct AttendWork {
    std::shared_ptr<const AttendBatch> batch;  // keeps the address from being used again
    double seconds = 0;
    SeenKeys seen;
  };
  struct Usage {
    size_t bytes = 0, peak_bytes = 0;
  };

  int64_t KeysIn(int64_t begin, int64_t end) const {
    return KeysInPages(begin, end, shape_.page_tokens);
  }
  AttendWork Count(const AttendArgs& args) const;
  void CountTokens();
  void CountSeen(const SeenKeys& seen);
  void RunOp(OpKind kind, int layer, double seconds, int64_t bytes = 0);

  const ModelShape shape_;
  const OpCost cost_;
  const int64_t pages_;
  TraceBuffer trace_;
  VirtualStream stream_;
  WorkCounters counters_;
  // A batch is the same in every layer: whole batches are counted once.
  std::unordered_map<const AttendBatch*, AttendWork> counted_;
  std::shared_ptr<const TokenBatch> tokens_;
  double token_keys_ = 0, token_tile_keys_ = 0;  // of tokens_, see OpCost::TokenAttend
  SeenKeys token_seen_;                          // likewise
  // Buffers may be freed after their device.
  std::shared_ptr<std::unordered_map<std::string, Usage>> memory_;
};

}  // namespace ringfill
