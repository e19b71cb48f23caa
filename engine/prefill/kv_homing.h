// The K/V rows of dealt chunks on their way to the ranks that keep them, one layer at a time:
// shifted pairwise exchanges of a header and rows, from sections of the outbox to an inbox.
#pragma once

#include <memory>
#include <vector>

#include "engine/prefill/attention_strategy.h"

namespace ringfill {

// Slots of the outbox that the header before a section takes.
int64_t HeaderSlots(Device& device);

class KvHoming {
 public:
  // `outbox`: where RunLayers leaves the kv rows; may be null when the step deals nothing.
  KvHoming(PassContext& pass, std::byte* outbox);

  // Queued behind RunLayers(project = layer): the rows leave.
  void Start(const AttentionLayer& layer);
  // What is queued behind it finds all rows of the layer in this rank's pages.
  void Finish(const AttentionLayer& layer);

 private:
  std::span<std::byte> OutMessage(int home) const;
  std::span<std::byte> InMessage(int source) const;

  PassContext& pass_;
  std::byte* const outbox_;
  std::byte* inbox_ = nullptr;
  size_t row_bytes_ = 0;
  std::vector<KvSection> out_;                                       // [ranks] by home
  std::vector<size_t> in_at_;                                        // [ranks] bytes in the inbox
  std::vector<std::shared_ptr<const std::vector<KvStore>>> stores_;  // [ranks] by source
  std::vector<int64_t> in_rows_;                                     // [ranks] by source
  std::vector<TransferPtr> coming_;                                  // [ranks] by distance
};

}  // namespace ringfill
