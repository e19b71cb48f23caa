#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/round_header.h"
#include "engine/compute/cuda/launch.h"

namespace ringfill::gpu {
namespace {

using Word = unsigned long long;

RF_KERNEL RF_LAUNCH_BOUNDS(kWarpLanes) void WriteHeaderKernel(HeaderWords header, Word* to,
                                                              bool keep_stop_mask) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= HeaderWords::kWords) return;
  if (keep_stop_mask && i == HeaderWords::kStopMask) return;
  to[i] = header.word[i];
}

RF_KERNEL RF_LAUNCH_BOUNDS(kWarpLanes) void CheckHeaderKernel(HeaderWords expected, const Word* at,
                                                              HeaderReport* report) {
  const int i = static_cast<int>(threadIdx.x);
  const bool in = i < HeaderWords::kWords;
  const bool compared = in && i != HeaderWords::kStopMask && i != HeaderWords::kChecksum;
  const Word got = in ? at[i] : 0;
  const bool refused = Any(compared && got != expected.word[in ? i : 0]);
  if (!refused) {
    if (i == HeaderWords::kStopMask) {
      unsigned* const mask = reinterpret_cast<unsigned*>(&report->stop_mask);
      AtomicOr(mask, static_cast<unsigned>(got));
      AtomicOr(mask + 1, static_cast<unsigned>(got >> 32));
    }
    return;
  }
  unsigned before = 0;
  if (i == 0) before = AtomicAdd(&report->mismatches, 1u);
  if (Shuffle(before, 0) != 0 || !in) return;
  report->expected.word[i] = expected.word[i];
  report->got.word[i] = got;
}

int LaunchWrite(const HeaderWords& header, std::byte* to, bool keep_stop_mask,
                KernelStream stream) {
  return Launch(WriteHeaderKernel, dim3(1), dim3(kWarpLanes), 0, stream, header,
                reinterpret_cast<Word*>(to), keep_stop_mask);
}

}  // namespace

int WriteHeader(const HeaderWords& header, std::byte* to, KernelStream stream) {
  return LaunchWrite(header, to, false, stream);
}

int ForwardHeader(const HeaderWords& header, std::byte* at, KernelStream stream) {
  return LaunchWrite(header, at, true, stream);
}

int CheckHeader(const HeaderWords& expected, const std::byte* at, HeaderReport* report,
                KernelStream stream) {
  return Launch(CheckHeaderKernel, dim3(1), dim3(kWarpLanes), 0, stream, expected,
                reinterpret_cast<const Word*>(at), report);
}

}  // namespace ringfill::gpu
