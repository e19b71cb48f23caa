// Sharded tokens on a GPU: embedding, the two halves of a layer, attention to pages and shards, K/V
// on the way to their home, headers. Each function queues an operation of device.h on the rank's
// stream, and is called by work of that stream.
#pragma once

#include <memory>
#include <vector>

#include "engine/compute/cuda/cuda_rank.h"
#include "engine/compute/device.h"

namespace ringfill {

absl::Status QueueEmbedRows(CudaRank& rank, const std::shared_ptr<const RowBatch>& batch,
                            const Device::RowBuffers& buffers);
absl::Status QueueLayers(CudaRank& rank, const Device::LayersArgs& args);
absl::Status QueueAttend(CudaRank& rank, const Device::AttendArgs& args);
absl::Status QueueMerge(CudaRank& rank, const std::byte* from, std::byte* into, int64_t tokens);
absl::Status QueueCopyPages(CudaRank& rank, int layer, const std::vector<PageId>& pages,
                            std::byte* shard);
absl::Status QueueStoreRows(CudaRank& rank, int layer, const std::vector<KvStore>& stores,
                            const std::byte* inbox);
absl::Status QueuePoison(CudaRank& rank, const std::vector<PageId>& pages);
absl::Status QueueWriteHeader(CudaRank& rank, const RoundHeader& header, std::byte* to,
                              bool keep_stop_mask);
absl::Status QueueCheckHeader(CudaRank& rank, const RoundHeader& expected, const std::byte* at,
                              const std::shared_ptr<LayerFlags>& flags);

}  // namespace ringfill
