#include "tests/cuda_emulation/streams/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace ringfill::cuda_emulation {
namespace {

constexpr std::chrono::seconds kHangNotice{20};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

Options DefaultOptions() {
  Options options;
  options.seed = FromEnvironment("RINGFILL_CUDA_SEED", 0);
  options.devices = static_cast<int>(
      FromEnvironment("RINGFILL_CUDA_DEVICES", static_cast<uint64_t>(options.devices)));
  options.device_bytes = FromEnvironment("RINGFILL_CUDA_DEVICE_BYTES", options.device_bytes);
  return options;
}

Runtime& Runtime::Get() {
  static auto* runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() {
  Reset(DefaultOptions());
  std::fprintf(stderr, "cuda emulation: %d devices, RINGFILL_CUDA_SEED=%llu\n", options_.devices,
               static_cast<unsigned long long>(options_.seed));
}

void Runtime::Reset(const Options& options) {
  RF_CHECK(options.devices >= 0 && options.devices <= kMaxDevices);
  {
    MutexLock lock(&mutex_);
    options_ = options;
    if (options_.seed == 0) {
      options_.seed =
          static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    }
    random_ = Random(options_.seed);
    for (int i = 0; i < kMaxDevices; ++i) {
      Device& device = At(i);
      RF_CHECK(!device.busy);
      device.streams.clear();
      device.default_stream.queue.clear();
      device.default_stream.capture.reset();
      device.default_stream.device = i;
      device.error = cudaSuccess;
      device.operations_left = 0;
    }
    events_.clear();
    captures_.clear();
    sequence_ = 0;
    last_report_.clear();
    counters_ = {};
  }
  DeviceMemory::Get().Reset(options.device_bytes);
}

// ---- devices and reports

cudaError_t Runtime::DeviceError(int device) {
  MutexLock lock(&mutex_);
  return At(device).error;
}

void Runtime::FailDevice(int device, cudaError_t error, const std::string& report) {
  MutexLock lock(&mutex_);
  if (At(device).error == cudaSuccess) At(device).error = error;
  if (!report.empty()) ReportLocked(report);
  DropQueues(At(device));
  changed_.SignalAll();
}

void Runtime::FailDeviceAfter(int device, int operations, cudaError_t error) {
  RF_CHECK(operations > 0);
  MutexLock lock(&mutex_);
  At(device).operations_left = operations;
  At(device).planned = error;
}

void Runtime::DropQueues(Device& device) {
  const auto drop = [](CUstream_st& stream) {
    // The head of a running stream is its worker's.
    const size_t keep = stream.running ? 1 : 0;
    while (stream.queue.size() > keep) {
      stream.queue.back().task->Drop();
      stream.queue.pop_back();
    }
  };
  drop(device.default_stream);
  for (const auto& stream : device.streams) drop(*stream);
}

void Runtime::Report(const std::string& report) {
  MutexLock lock(&mutex_);
  ReportLocked(report);
}

void Runtime::ReportLocked(const std::string& report) {
  last_report_ = report;
  if (quiet_) return;
  std::fprintf(stderr, "cuda emulation: %s (RINGFILL_CUDA_SEED=%llu)\n", report.c_str(),
               static_cast<unsigned long long>(options_.seed));
}

std::string Runtime::last_report() {
  MutexLock lock(&mutex_);
  return last_report_;
}

void Runtime::set_quiet(bool quiet) {
  MutexLock lock(&mutex_);
  quiet_ = quiet;
}

uint64_t Runtime::DrawSeed() {
  MutexLock lock(&mutex_);
  return random_.Next();
}

void Runtime::Count(uint64_t Counters::*counter) {
  MutexLock lock(&mutex_);
  ++(counters_.*counter);
}

Counters Runtime::counters() {
  MutexLock lock(&mutex_);
  return counters_;
}

// ---- workers

bool Runtime::Runnable(Device& device, CUstream_st& stream) {
  if (stream.queue.empty() || stream.running) return false;
  const uint64_t sequence = stream.queue.front().sequence;
  const auto later = [sequence](const CUstream_st& other) {
    return other.queue.empty() || other.queue.front().sequence > sequence;
  };
  if (&stream == &device.default_stream) {
    for (const auto& other : device.streams) {
      if (other->blocking && !later(*other)) return false;
    }
  } else if (stream.blocking && !later(device.default_stream)) {
    return false;
  }
  // Asked even when the device is busy: an operation among devices notes that it was reached.
  return stream.queue.front().task->Poll() && !device.busy;
}

bool Runtime::AllEmpty(const Device& device) {
  return device.default_stream.queue.empty() &&
         std::all_of(device.streams.begin(), device.streams.end(),
                     [](const auto& stream) { return stream->queue.empty(); });
}

bool Runtime::Step(std::array<bool, kMaxDevices>& opened) {
  std::vector<CUstream_st*> runnable;
  // Twice: what the first round reached may let others go on.
  for (int round = 0; round < 2; ++round) {
    runnable.clear();
    for (int i = 0; i < options_.devices; ++i) {
      Device& device = At(i);
      if (Runnable(device, device.default_stream)) runnable.push_back(&device.default_stream);
      for (const auto& stream : device.streams) {
        if (Runnable(device, *stream)) runnable.push_back(stream.get());
      }
    }
  }
  if (runnable.empty()) return false;
  RunHead(*runnable[random_.Below(runnable.size())], opened);
  return true;
}

void Runtime::RunHead(CUstream_st& stream, std::array<bool, kMaxDevices>& opened) {
  Device& device = At(stream.device);
  Task& task = *stream.queue.front().task;
  stream.running = true;
  device.busy = true;
  std::vector<int> touched = task.devices();
  touched.push_back(stream.device);
  mutex_.Unlock();
  for (int i : touched) {
    if (!opened[static_cast<size_t>(i)]) DeviceMemory::Get().Open(i);
    opened[static_cast<size_t>(i)] = true;
  }
  Outcome outcome = task.Run();
  mutex_.Lock();
  stream.running = false;
  device.busy = false;
  if (outcome.error != cudaSuccess && device.error == cudaSuccess) {
    device.error = outcome.error;
    ReportLocked(outcome.report);
  }
  if (device.operations_left > 0 && --device.operations_left == 0 && device.error == cudaSuccess) {
    device.error = device.planned;
  }
  if (device.error != cudaSuccess) {
    if (!outcome.finished) task.Drop();
    outcome.finished = true;
  }
  if (outcome.finished) stream.queue.pop_front();
  if (device.error != cudaSuccess) DropQueues(device);
  if (stream.destroyed && stream.queue.empty()) {
    std::erase_if(device.streams, [&stream](const auto& s) { return s.get() == &stream; });
  }
  changed_.SignalAll();
}

void Runtime::WorkUntilLocked(const std::function<bool()>& done) {
  std::array<bool, kMaxDevices> opened{};
  Instant notice = Clock::Real().Now() + kHangNotice;
  while (!done()) {
    if (Step(opened)) continue;
    if (changed_.WaitUntil(&mutex_, notice)) continue;
    std::fprintf(stderr, "cuda emulation: nothing can run for %d s: %s\n",
                 static_cast<int>(kHangNotice.count()), DescribeHang().c_str());
    notice += kHangNotice;
  }
  for (int i = 0; i < kMaxDevices; ++i) {
    if (opened[static_cast<size_t>(i)]) DeviceMemory::Get().Close(i);
  }
}

void Runtime::WorkALittle() {
  constexpr uint64_t kMost = 4;
  uint64_t steps = random_.Below(kMost + 1);
  std::array<bool, kMaxDevices> opened{};
  while (steps > 0 && Step(opened)) --steps;
  for (int i = 0; i < kMaxDevices; ++i) {
    if (opened[static_cast<size_t>(i)]) DeviceMemory::Get().Close(i);
  }
}

void Runtime::WorkUntil(const std::function<bool()>& done) {
  MutexLock lock(&mutex_);
  WorkUntilLocked(done);
}

void Runtime::Change(const std::function<void()>& change) {
  MutexLock lock(&mutex_);
  change();
  changed_.SignalAll();
}

std::string Runtime::DescribeHang() {
  std::string text;
  for (int i = 0; i < options_.devices; ++i) {
    Device& device = At(i);
    const auto describe = [&](CUstream_st& stream) {
      if (stream.queue.empty()) return;
      text += std::string(text.empty() ? "" : ", ") + "device " + std::to_string(i) + " waits at " +
              stream.queue.front().task->name();
    };
    describe(device.default_stream);
    for (const auto& stream : device.streams) describe(*stream);
  }
  return text.empty() ? "all streams are empty" : text;
}

// ---- streams

CUstream_st* Runtime::Find(cudaStream_t handle) {
  if (handle == nullptr) return &At(CurrentDevice()).default_stream;
  for (Device& device : devices_) {
    for (const auto& stream : device.streams) {
      if (stream.get() == handle) return stream->destroyed ? nullptr : handle;
    }
  }
  return nullptr;
}

cudaError_t Runtime::CreateStream(int device, bool blocking, cudaStream_t* handle) {
  MutexLock lock(&mutex_);
  auto stream = std::make_unique<CUstream_st>();
  stream->device = device;
  stream->blocking = blocking;
  *handle = stream.get();
  At(device).streams.push_back(std::move(stream));
  return cudaSuccess;
}

cudaError_t Runtime::DestroyStream(cudaStream_t handle) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (handle == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  Device& device = At(stream->device);
  stream->destroyed = true;
  if (stream->capture != nullptr) stream->capture->invalid = true;
  if (stream->queue.empty()) {
    std::erase_if(device.streams, [stream](const auto& s) { return s.get() == stream; });
  }
  return cudaSuccess;
}

int Runtime::DeviceOfStream(cudaStream_t handle) {
  MutexLock lock(&mutex_);
  const CUstream_st* stream = Find(handle);
  return stream == nullptr ? -1 : stream->device;
}

cudaError_t Runtime::Enqueue(cudaStream_t handle, const TaskFactory& make) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return AddNode(*stream, make);
  // The default stream would have to wait for what is being captured.
  if (handle == nullptr) {
    for (const auto& other : At(stream->device).streams) {
      if (other->blocking && other->capture != nullptr) {
        other->capture->invalid = true;
        return cudaErrorStreamCaptureImplicit;
      }
    }
  }
  return EnqueueLocked(*stream, make);
}

cudaError_t Runtime::EnqueueLocked(CUstream_st& stream, const TaskFactory& make) {
  if (At(stream.device).error != cudaSuccess) return At(stream.device).error;
  stream.queue.push_back({make(), sequence_++});
  changed_.SignalAll();
  return cudaSuccess;
}

cudaError_t Runtime::SynchronizeStream(cudaStream_t handle) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = CheckNotCapturingLocked()) return error;
  WorkUntilLocked([stream] { return stream->queue.empty(); });
  DeviceMemory::Get().Trim(stream->device);
  return At(stream->device).error;
}

cudaError_t Runtime::SynchronizeDevice(int index) {
  MutexLock lock(&mutex_);
  Device& device = At(index);
  if (const cudaError_t error = CheckNotCapturingLocked()) return error;
  WorkUntilLocked([&device] { return AllEmpty(device); });
  DeviceMemory::Get().Trim(index);
  return device.error;
}

cudaError_t Runtime::QueryStream(cudaStream_t handle) {
  MutexLock lock(&mutex_);
  CUstream_st* stream = Find(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = CheckNotCapturingLocked()) return error;
  if (!stream->queue.empty()) WorkALittle();
  if (At(stream->device).error != cudaSuccess) return At(stream->device).error;
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace ringfill::cuda_emulation
