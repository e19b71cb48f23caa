// A rank's device on the CPU: runs the operations of device.h on a team of threads, queued on a
// host stream.
#pragma once

#include <memory>
#include <vector>

#include "engine/compute/cpu/cpu_model.h"
#include "engine/compute/cpu/cpu_rank.h"
#include "engine/compute/cpu/token_pass.h"
#include "engine/compute/device.h"
#include "engine/stream/host_stream.h"

namespace ringfill {

struct CpuDeviceOptions {
  int64_t pages = 0;    // of KV
  int threads = 1;      // the stream's own thread included
  int spin_rounds = 0;  // how long idle threads spin: see ThreadTeam
  HostStreamFactory make_stream = MakeInlineStream;
};

class CpuDevice final : public Device {
 public:
  // `model` outlives the device.
  CpuDevice(CpuModel& model, const CpuDeviceOptions& options);
  ~CpuDevice() override;

  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, std::string_view what) override;
  // The model's expanded weights are shared: see ExpandedWeights::bytes().
  std::vector<MemoryUse> Memory() const override { return rank_.ledger->Uses(); }
  Stream& stream() override { return *stream_; }
  TraceBuffer& trace() override { return trace_; }
  WorkCounters TakeCounters() override;
  void Recover() override { stream_->Clear(); }
  // Of all devices that share the model, until CpuModel::StartEpoch.
  void Abort(absl::Status status) override { rank_.model.Abort(status); }
  void SetWaitLimit(Duration limit) override { wait_limit_ = limit; }

  int64_t pages() const override { return rank_.pool.pages(); }
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
  // Queues work that cannot fail.
  template <typename Work>
  void Queue(const OpLabel& label, Work work);

  CpuRank rank_;
  TokenPass tokens_;
  Duration wait_limit_;
  TraceBuffer trace_;
  std::unique_ptr<HostStream> stream_;  // last: what is queued uses the others
};

}  // namespace ringfill
