// Sharded tokens on the CPU: embedding, the two halves of a layer over tiles of rows, and K/V on
// the way to their home.
#pragma once

#include <vector>

#include "engine/compute/cpu/cpu_rank.h"
#include "engine/compute/device.h"

namespace ringfill {

void EmbedRows(CpuRank& rank, const RowBatch& batch, const Device::RowBuffers& buffers);

// See Device::RunLayers. Fails when another rank does not leave or expand a layer within
// `wait_limit`, or the epoch is aborted.
absl::Status RunLayers(CpuRank& rank, const Device::LayersArgs& args, Duration wait_limit);

void CopyPages(CpuRank& rank, int layer, const std::vector<PageId>& pages, std::byte* shard);

// See Device::StoreRows: the pages get the bits that storing the float rows would have given.
void StoreRows(CpuRank& rank, int layer, const std::vector<KvStore>& stores,
               const std::byte* inbox);

}  // namespace ringfill
