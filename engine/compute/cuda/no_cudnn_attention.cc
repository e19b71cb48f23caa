#include "engine/compute/cuda/fused_attention.h"

namespace ringfill {

absl::StatusOr<std::unique_ptr<FusedAttention>> MakeFusedAttention(int,
                                                                   const FusedAttentionOptions&) {
  return absl::UnimplementedError("this program was built without cuDNN");
}

}  // namespace ringfill
