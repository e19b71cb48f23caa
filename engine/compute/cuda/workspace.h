// Sizes of what a CUDA device works with. No CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/model.h"
#include "kvcache/kv_geometry.h"

namespace ringfill {

// Rows that go through the products together, at most.
inline constexpr int64_t kProductRows = 2048;
// Tokens that run through the layers replicated, at most.
inline constexpr int64_t kReplicatedTokens = 256;
// Logits that exist at once, at most; a row of them always does.
inline constexpr int64_t kMostLogits = int64_t{8} << 20;
// Rows of the output head that are multiplied together.
inline constexpr int64_t kVocabBlock = 8192;
// Of device memory, for cuBLASLt.
inline constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;
// Pinned memory of the host that a rank takes when it starts: blocks for lists, and one for logits.
inline constexpr size_t kPinnedListBytes = size_t{1} << 20;
inline constexpr int kPinnedLists = 4;
size_t PinnedLogitBytes(const ModelConfig& config);
// Of device memory, for a library's attention; one that wants more is done without.
inline constexpr size_t kFusedWorkspaceBytes = size_t{64} << 20;
// Pages that an entry of fused attention sees, at most.
inline constexpr int64_t kMostTablePages = int64_t{1} << 16;

// The pages of a rank on a GPU: bf16, blocks [page_tokens][head_dim].
KvGeometry CudaKvGeometry(const ModelConfig& config, int page_tokens);
// Scratch of one device, besides weights, pages and what the passes take themselves.
size_t CudaWorkspaceBytes(const ModelConfig& config);
// Memory of one device that libraries take for themselves beside that, `ranks` being the ring's.
size_t CudaLibraryBytes(int ranks);

}  // namespace ringfill
