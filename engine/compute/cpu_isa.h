// Which instruction set the CPU kernels use. Found once from the machine; tests force a lower one
// to run every path that the machine has.
#pragma once

#include <string_view>
#include <vector>

namespace ringfill {

// Ascending. kBaseline is plain C++ (the reference implementations).
enum class CpuIsa { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr int kCpuIsas = 4;

std::string_view CpuIsaName(CpuIsa isa);

// The best set this machine has (AVX2 means AVX2 + FMA + F16C).
CpuIsa DetectCpuIsa();

// All sets this machine can run, ascending, for tests that force each.
std::vector<CpuIsa> AvailableCpuIsas();

}  // namespace ringfill
