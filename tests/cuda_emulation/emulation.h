// What tests say to the emulation besides CUDA's own calls. One emulation to a process, as there is
// one driver. Any thread may call, none while another is inside a CUDA call, except KillDevice.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringfill::cuda_emulation {

struct Options {
  int devices = 4;  // at most kMaxDevices (8)
  size_t device_bytes = size_t{8} << 30;
  // Everything random is drawn from it. 0: from the clock.
  uint64_t seed = 0;
  // What the devices say they are; limits are those of sm_90.
  int major = 9;
  int minor = 0;
  // Whether they reach each other's memory (cudaDeviceCanAccessPeer). Kernels of the tests never
  // do.
  bool peers = true;
};

// The emulation starts with these on its first use: the defaults, with RINGFILL_CUDA_SEED,
// RINGFILL_CUDA_DEVICES and RINGFILL_CUDA_DEVICE_BYTES from the environment.
Options DefaultOptions();

// Starts anew with empty devices. Handles and pointers from before are void. REQUIRES: no thread is
// inside a CUDA call.
void Reset(const Options& options);

// The seed in use. A run on one host thread repeats with it.
uint64_t Seed();

// What the last kernel or queued operation that failed did wrong; empty since Reset when none did.
// Also printed to the standard error output.
std::string LastReport();
// Reports go to LastReport alone, for tests that provoke them.
void SetQuiet(bool quiet);

// From now on the device fails all calls with `error`, as after a hardware fault; what is queued is
// dropped.
void KillDevice(int device, cudaError_t error = cudaErrorLaunchFailure);
// The same when it has run so many operations more, nodes of graphs counted singly.
void KillDeviceAfter(int device, int operations, cudaError_t error = cudaErrorLaunchFailure);

// From now on the device has so many bytes left, and what is freed besides.
void LimitMemory(int device, size_t free_bytes);

// Calls of cudaMalloc on the device do not return until ReleaseAllocations, which any thread may
// call meanwhile: a driver that does not answer.
void HangAllocations(int device);
void ReleaseAllocations(int device);

// Counts since Reset, for tests that assert them.
struct Counters {
  uint64_t kernels = 0;
  uint64_t copies = 0;
  uint64_t graph_launches = 0;
  uint64_t pinned = 0;    // allocations of pinned memory
  uint64_t unpinned = 0;  // and their frees
};
Counters GetCounters();

}  // namespace ringfill::cuda_emulation
