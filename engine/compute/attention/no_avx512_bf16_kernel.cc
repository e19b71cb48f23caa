#include "engine/compute/attention/group_pass.h"

namespace ringfill {

GroupKernel Avx512Bf16GroupKernel() { return nullptr; }

}  // namespace ringfill
