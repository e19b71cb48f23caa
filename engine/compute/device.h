// One rank's compute device: memory, a stream, and the operations of a forward pass, queued on it.
// The passes in prefill/ and decode/ are written against this alone, for devices that run later:
// an operation returns when it is queued; what it reads and writes belongs to it until an event
// recorded behind it is done. Batches are shared and immutable, so that queued work keeps them.
//
// Buffers on the device, for a batch of `rows` tokens (group = heads / kv_heads):
//   x       [rows][width] float32                       the residual stream
//   angles  [rows][rope_dims] float32
//   q       [kv_heads][rows * group][head_dim]          KV type, scaled (PackQueries)
//   state   max [kv_heads][rows * group], sum likewise, acc [kv_heads][rows * group][head_dim];
//           float32, end to end (softmax_state.h)
//   kv rows [rows][k|v][kv_heads * head_dim]            KV type: K/V on the way to their home
//   shard   page after page, one layer of each: KvGeometry::LayerBytes()
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/compute/batch.h"
#include "engine/compute/memory_pool.h"
#include "engine/model/token_id.h"
#include "engine/stream/op_label.h"
#include "engine/stream/round_header.h"
#include "engine/stream/stream.h"
#include "engine/stream/trace.h"
#include "kvcache/kv_geometry.h"
#include "kvcache/page_allocator.h"

namespace ringfill {

// Memory of a device; the host passes addresses into it along but never reads through them.
class DeviceBuffer {
 public:
  using Free = std::function<void(std::byte*)>;
  DeviceBuffer() = default;
  DeviceBuffer(std::byte* data, size_t bytes, Free free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  ~DeviceBuffer() { Reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    free_ = std::move(other.free_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void Reset() {
    if (data_ != nullptr) free_(data_);
    data_ = nullptr;
  }
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_;
};

// Used by one host thread, the rank's own, except where noted.
class Device {
 public:
  virtual ~Device() = default;

  // `what` names the buffer in Memory(), in the pool kBuffers. RESOURCE_EXHAUSTED when the device
  // has no such memory, now; another error from one that is lost.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, std::string_view what) = 0;
  struct MemoryUse {
    std::string what;
    MemoryPool pool;
    size_t bytes;  // now, summed over buffers of that name
    size_t peak_bytes;
  };
  virtual std::vector<MemoryUse> Memory() const = 0;

  virtual Stream& stream() = 0;
  virtual TraceBuffer& trace() = 0;
  virtual WorkCounters TakeCounters() = 0;
  // Forgets a failed step: see Stream::Clear. After one without memory gives scratch back, so that
  // a smaller step finds room. REQUIRES: the stream has been synchronised.
  virtual void Recover() = 0;
  // Makes whatever waits inside the device's operations, now or later, fail with `status` until the
  // epoch is formed anew. The first abort wins. Any thread may call it. REQUIRES: !status.ok().
  virtual void Abort(absl::Status status) = 0;
  // Nothing will ever run on it again: a GPU that fails every call. REQUIRES: no operation runs.
  virtual bool lost() { return false; }
  // How long an operation that is queued from now on may wait inside for the other ranks.
  virtual void SetWaitLimit(Duration limit) = 0;

  // ---- KV pages of this rank
  virtual int64_t pages() const = 0;
  // Overwrites freed pages, so that reading one shows.
  virtual void PoisonPages(std::vector<PageId> pages) = 0;

  // ---- sharded tokens
  struct RowBuffers {
    std::byte* x = nullptr;
    std::byte* angles = nullptr;
    std::byte* q = nullptr;
    std::byte* outbox = nullptr;  // kv rows; may be null when batch.send_slots is 0
  };
  size_t virtual QueryBytes(int64_t rows) const = 0;
  size_t virtual StateBytes(int64_t rows) const = 0;
  size_t virtual KvRowBytes() const = 0;
  size_t virtual AngleBytes(int64_t rows) const = 0;
  // Writes x and angles.
  virtual void EmbedRows(std::shared_ptr<const RowBatch> batch, const RowBuffers& buffers) = 0;
  // Second half of layer `finish` (reads state, updates x), then first half of layer `project`
  // (writes q, pages and outbox). Every rank of an epoch calls it for the same layers in ascending
  // order, with or without rows, because they share expanded weights.
  struct LayersArgs {
    int finish = -1;           // -1: only project
    int project = -1;          // -1: only finish
    bool only_wanted = false;  // finish: tiles that are not wanted are skipped
    uint64_t stopped = 0;      // tiles whose chunks are all stopped are skipped
    std::shared_ptr<const RowBatch> batch = nullptr;  // null: no rows
    RowBuffers buffers{};
    const std::byte* state = nullptr;
    std::shared_ptr<LayerFlags> flags = nullptr;
  };
  virtual void RunLayers(const LayersArgs& args) = 0;
  // Gives up a pass after RunLayers(project = layer), when all chunks were stopped.
  virtual void AbandonLayers(int layer) = 0;
  // Layer `layer` of `pages`, in order, to `shard`.
  virtual void CopyPages(int layer, std::shared_ptr<const std::vector<PageId>> pages,
                         std::byte* shard) = 0;
  // kv rows of an inbox into pages; KvStore::row is the index in the inbox.
  virtual void StoreRows(int layer, std::shared_ptr<const std::vector<KvStore>> stores,
                         const std::byte* inbox) = 0;
  virtual void WriteHeader(const RoundHeader& header, std::byte* to) = 0;
  // The same over a header that was received and checked, whose stop_mask stays: it is the
  // source's.
  virtual void ForwardHeader(const RoundHeader& header, std::byte* at) = 0;
  // Fails the stream with DATA_LOSS when the header is another; ORs its stop_mask into `flags`.
  virtual void CheckHeader(const RoundHeader& expected, const std::byte* at,
                           std::shared_ptr<LayerFlags> flags) = 0;
  struct AttendArgs {
    OpLabel label{};  // kind kAttend, with layer, round, strategy
    std::shared_ptr<const AttendBatch> batch = nullptr;
    const std::byte* q = nullptr;      // of the rank whose queries they are
    std::byte* state = nullptr;        // likewise; merged with what is seen here
    int64_t rows = 0;                  // of that rank's batch: the extent of q and state
    const std::byte* shard = nullptr;  // null: this rank's own pages
    bool clear = false;                // all `rows` states start empty
    bool only_wanted = false;
    uint64_t stopped = 0;  // tiles of these chunks are skipped
    std::shared_ptr<LayerFlags> flags = nullptr;
  };
  virtual void Attend(const AttendArgs& args) = 0;
  // Merges the states of `rows` tokens.
  virtual void MergeState(const OpLabel& label, const std::byte* from, std::byte* into,
                          int64_t rows) = 0;
  // The normalised final states of `rows` of x to the host. out: [rows.size()][width], valid after
  // an event; the caller keeps it alive.
  virtual void HiddenRows(const std::byte* x, std::vector<int64_t> rows, float* out) = 0;
  struct ScoreRow {
    int64_t row;
    TokenId target;
  };
  // Natural log-probabilities of the targets. out: [rows.size()], valid after an event.
  virtual void ScoreRows(const std::byte* x, std::vector<ScoreRow> rows, float* out) = 0;
  // Rows [vocab_begin, vocab_end) of the output head. hidden: [rows][width] host floats; out:
  // [rows][vocab_end - vocab_begin]; both valid until and after an event.
  virtual void Logits(const float* hidden, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
                      float* out) = 0;

  // ---- replicated tokens: every rank holds all of them and a slice of each matrix
  // Four all-gathers a layer lie between the five stages; all ranks send equally many bytes. Parts
  // of kQkv begin with room for a RoundHeader, the caller's.
  enum class TokenStage { kQkv, kStates, kOutput, kFfn };
  // The first stage in which this rank's part of a token was not finite, written by the stages.
  struct TokenFault {
    int layer = -1;  // -1: none
    TokenStage stage = TokenStage::kQkv;
  };
  struct TokenBatch {
    int rank = 0, ranks = 1;
    std::vector<TokenId> token;     // [tokens]
    std::vector<int64_t> position;  // [tokens]
    std::vector<int> run;           // [tokens] whose KV the token sees
    // [tokens] of the run on this rank, the token sees KV tokens [begin, visible), itself included.
    // begin may be empty: 0 for all.
    std::vector<int64_t> visible;
    std::vector<int64_t> begin;
    std::vector<KvRun> runs;      // this rank's pages
    std::vector<KvStore> stores;  // tokens whose home this rank is; KvStore::row is the token
    std::shared_ptr<std::vector<TokenFault>> faults;  // [tokens] or null
    int64_t tokens() const { return static_cast<int64_t>(token.size()); }
    int64_t BeginOf(size_t t) const { return begin.empty() ? 0 : begin[t]; }
  };
  virtual size_t TokenBytes(TokenStage stage, int64_t tokens, int ranks) const = 0;
  virtual void BeginTokens(std::shared_ptr<const TokenBatch> batch) = 0;
  // From here on: the same tokens, some of which see nothing any more and are stored nowhere.
  virtual void StopTokens(std::shared_ptr<const TokenBatch> rest) = 0;
  // Norm and this rank's slice of the q, k, v rows.
  virtual void TokenQkv(int layer, std::byte* send) = 0;
  // gathered: [ranks] parts. Assembles q, k, v, turns them, stores the K/V at home, attends to this
  // rank's pages: partial states.
  virtual void TokenAttend(int layer, const std::byte* gathered, std::byte* send) = 0;
  // Merges the partial states; this rank's slice of o.
  virtual void TokenOutput(int layer, const std::byte* gathered, std::byte* send) = 0;
  // Adds o; norm; this rank's slice of the hidden dimension; down's partial sums.
  virtual void TokenFfn(int layer, const std::byte* gathered, std::byte* send) = 0;
  // Adds down.
  virtual void EndTokenLayer(int layer, const std::byte* gathered) = 0;
  // Normalised final states. out: [tokens][width] on the host, valid after an event.
  virtual void HiddenTokens(float* out) = 0;
};

}  // namespace ringfill
