// What cuDNN's attention takes on GPUs that need not be there, for tests.
#pragma once

#include "base/status.h"
#include "engine/compute/cuda/fused_attention.h"

namespace ringfill {

// What cuDNN asks of a GPU before it names its engines.
struct CudnnGpu {
  int capability;  // 80: sm_80
  int processors;
  int64_t shared_bytes;  // of a block, at most
};

// Whether it has an engine for such calls on such a GPU: what MakeFusedAttention asks before it
// compiles one. UNIMPLEMENTED saying why not.
absl::Status CheckCudnnAttention(const FusedAttentionOptions& options, const CudnnGpu& gpu);

}  // namespace ringfill
