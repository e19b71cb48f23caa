#include "engine/compute/cpu_isa.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

TEST(CpuIsaTest, EverySetHasItsOwnName) {
  std::set<std::string_view> names;
  for (CpuIsa isa : {CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    names.insert(CpuIsaName(isa));
  }
  EXPECT_EQ(names.size(), 4u);
  EXPECT_EQ(CpuIsaName(CpuIsa::kAvx512Bf16), "avx512_bf16");
}

TEST(CpuIsaTest, AvailableSetsAscendFromBaselineToTheDetectedOne) {
  const std::vector<CpuIsa> isas = AvailableCpuIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), CpuIsa::kBaseline);
  EXPECT_EQ(isas.back(), DetectCpuIsa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(isas.size(), static_cast<size_t>(DetectCpuIsa()) + 1);
}

// What the kernel says of the first CPU is another account of the same machine.
TEST(CpuIsaTest, AgreesWithTheKernel) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(cpuinfo, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string flag; words >> flag;) flags.insert(flag);
  }
  if (flags.empty()) GTEST_SKIP() << "the kernel lists no CPU flags here";
  const auto has_all = [&](std::initializer_list<const char*> wanted) {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const char* flag) { return flags.contains(flag); });
  };
  const bool avx2 = has_all({"avx2", "fma", "f16c"});
  const bool avx512 = avx2 && has_all({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"});
  const bool bf16 = avx512 && has_all({"avx512_bf16"});
  const CpuIsa want = bf16     ? CpuIsa::kAvx512Bf16
                      : avx512 ? CpuIsa::kAvx512
                      : avx2   ? CpuIsa::kAvx2
                               : CpuIsa::kBaseline;
  EXPECT_EQ(DetectCpuIsa(), want) << CpuIsaName(DetectCpuIsa());
}

}  // namespace
}  // namespace ringfill
