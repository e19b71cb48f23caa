#include "engine/worker/cuda_backend.h"

namespace ringfill {

absl::StatusOr<CudaBackend> MakeCudaBackend(std::shared_ptr<const Model>,
                                            const CudaBackendOptions&) {
  return absl::UnimplementedError(
      "this build has no GPU support: build it where the CUDA toolkit, cuBLASLt and NCCL are, or "
      "set ranks.backend: cpu");
}

}  // namespace ringfill
