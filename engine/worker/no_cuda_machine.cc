#include "engine/worker/rank_machine.h"

namespace ringfill {

std::shared_ptr<const GpuMachines> CudaMachines() { return nullptr; }

}  // namespace ringfill
