// The nccl transport over emulated GPUs, for the conformance suite: several times, each with
// another seed of the emulation. None where the tests are built without it.
#pragma once

#include <vector>

#include "tests/engine/comm/transports.h"

namespace ringfill {

std::vector<Transport> NcclTransports();

}  // namespace ringfill
