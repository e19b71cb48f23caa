// A rank's device on a GPU: the operations of device.h by the kernels of kernels/ and the products
// of cuBLASLt, queued on a CUDA stream. Weights, queries and KV are bf16, states and the residual
// stream float32.
//
// No operation waits for other ranks inside: Abort ends what the stream has queued after it, and a
// wait limit has nothing to limit.
#pragma once

#include <memory>
#include <vector>

#include "engine/compute/cuda/cuda_rank.h"
#include "engine/compute/cuda/cuda_tokens.h"
#include "engine/compute/device.h"

namespace ringfill {

class CudaDevice final : public Device {
 public:
  // Takes its memory and uploads the weights; the host waits. INVALID_ARGUMENT for a model that
  // the kernels do not take, RESOURCE_EXHAUSTED when it does not fit.
  static absl::Status CheckModel(const ModelConfig& config);
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(std::shared_ptr<const Model> model,
                                                          const CudaRankOptions& options);
  ~CudaDevice() override;

  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, std::string_view what) override;
  std::vector<MemoryUse> Memory() const override { return rank_->memory.ledger().Uses(); }
  Stream& stream() override { return *stream_; }
  const CudaGpu& gpu() const { return rank_->gpu; }
  // Stages of replicated tokens that ran as CUDA graphs. REQUIRES: nothing is queued.
  int64_t graphs_replayed() const { return tokens_.graphs_replayed(); }
  TraceBuffer& trace() override { return *trace_; }
  WorkCounters TakeCounters() override;
  void Recover() override;
  void Abort(absl::Status status) override { stream_->Fail(status); }
  bool lost() override { return stream_->DeviceLost(); }
  void SetWaitLimit(Duration limit) override { wait_limit_ = limit; }

  int64_t pages() const override { return rank_->pages; }
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
  CudaDevice(std::shared_ptr<const Model> model, std::unique_ptr<TraceBuffer> trace,
             std::unique_ptr<CudaStream> stream, std::unique_ptr<CudaRank> rank);
  // `work` returns a status.
  template <typename Work>
  void Queue(const OpLabel& label, Work work);

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<TraceBuffer> trace_;
  // Destroyed from the last: buffers go while the stream is there, which first runs what is queued.
  const std::unique_ptr<CudaStream> stream_;
  const std::unique_ptr<CudaRank> rank_;
  CudaTokens tokens_;
  Duration wait_limit_ = kTrialLimit;
};

}  // namespace ringfill
