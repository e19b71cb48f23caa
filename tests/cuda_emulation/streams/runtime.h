// The emulated driver: devices, their streams, and the threads that run what is queued.
//
// Nothing runs when it is queued. A host thread that synchronises (or queries) becomes a worker: it
// draws one stream after the other among those whose head can run, in a seeded random order, until
// what it waits for is done. Several host threads work at once, on different devices.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/memory/device_memory.h"
#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/streams/event.h"
#include "tests/cuda_emulation/streams/graph.h"
#include "tests/cuda_emulation/streams/task.h"

// A stream. Guarded by the runtime's lock.
struct CUstream_st {
  struct Entry {
    std::unique_ptr<ringfill::cuda_emulation::Task> task;
    uint64_t sequence;  // over all streams, in the order of the calls
  };
  int device = 0;
  bool blocking = true;  // ordered with the default stream
  bool destroyed = false;
  bool running = false;  // its head
  std::deque<Entry> queue;
  std::shared_ptr<ringfill::cuda_emulation::Capture> capture;
  std::vector<size_t> captured_tail;  // nodes that the next one comes after
};

namespace ringfill::cuda_emulation {

class Runtime {
 public:
  static Runtime& Get();

  void Reset(const Options& options);

  // ---- called by the API functions; errors are CUDA's
  const Options& options() const { return options_; }
  int device_count() const { return options_.devices; }
  // The device's error since it failed.
  cudaError_t DeviceError(int device);
  void FailDevice(int device, cudaError_t error, const std::string& report);
  void FailDeviceAfter(int device, int operations, cudaError_t error);

  cudaError_t CreateStream(int device, bool blocking, cudaStream_t* stream);
  cudaError_t DestroyStream(cudaStream_t stream);
  // The handle's stream; null: the default stream of the current device.
  cudaError_t Enqueue(cudaStream_t stream, const TaskFactory& make);
  // Waits until the stream, or every stream of the device, is empty.
  cudaError_t SynchronizeStream(cudaStream_t stream);
  cudaError_t SynchronizeDevice(int device);
  cudaError_t QueryStream(cudaStream_t stream);
  int DeviceOfStream(cudaStream_t stream);

  cudaEvent_t CreateEvent(int device, bool timing);
  cudaError_t DestroyEvent(cudaEvent_t event);
  cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream);
  cudaError_t WaitEvent(cudaStream_t stream, cudaEvent_t event);
  cudaError_t SynchronizeEvent(cudaEvent_t event);
  cudaError_t QueryEvent(cudaEvent_t event);
  cudaError_t ElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
  cudaStreamCaptureStatus CaptureStatus(cudaStream_t stream);
  cudaError_t LaunchGraph(cudaGraphExec_t graph, cudaStream_t stream);
  // Calls that must not be made while capturing; an error also ends the capture.
  cudaError_t CheckNotCapturing();

  // Does queued work until done() holds, called under the lock. For libraries too.
  void WorkUntil(const std::function<bool()>& done);
  // Runs `change` under the lock and wakes the workers.
  void Change(const std::function<void()>& change);

  uint64_t DrawSeed();
  void Report(const std::string& report);
  std::string last_report();
  void set_quiet(bool quiet);
  void Count(uint64_t Counters::*counter);
  Counters counters();

 private:
  struct Device {
    CUstream_st default_stream;
    std::vector<std::unique_ptr<CUstream_st>> streams;
    cudaError_t error = cudaSuccess;
    int operations_left = 0;  // until it fails with `planned`; 0: none is planned
    cudaError_t planned = cudaSuccess;
    bool busy = false;  // a worker runs a task of it
  };

  Runtime();
  Device& At(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return devices_[static_cast<size_t>(device)];
  }
  // Null when the handle is none of ours.
  CUstream_st* Find(cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Known(cudaEvent_t event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Runnable(Device& device, CUstream_st& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool AllEmpty(const Device& device);  // under the lock
  // Runs one task; false when none can run. `opened` are the devices whose memory this worker has
  // made accessible.
  bool Step(std::array<bool, kMaxDevices>& opened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunHead(CUstream_st& stream, std::array<bool, kMaxDevices>& opened)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WorkUntilLocked(const std::function<bool()>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A few tasks, so that a host that polls gets somewhere.
  void WorkALittle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t EnqueueLocked(CUstream_st& stream, const TaskFactory& make)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t AddNode(CUstream_st& stream, const TaskFactory& make)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Capture& capture) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t CheckNotCapturingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropQueues(Device& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportLocked(const std::string& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeHang() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Options options_;
  Mutex mutex_;
  CondVar changed_;
  std::array<Device, kMaxDevices> devices_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<CUevent_st>> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ ABSL_GUARDED_BY(mutex_);
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::string last_report_ ABSL_GUARDED_BY(mutex_);
  bool quiet_ ABSL_GUARDED_BY(mutex_) = false;
  Counters counters_ ABSL_GUARDED_BY(mutex_);
};

// The device that cudaSetDevice chose on this thread.
int CurrentDevice();
void SetCurrentDevice(int device);

}  // namespace ringfill::cuda_emulation
