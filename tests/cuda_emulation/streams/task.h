// One entry of a stream's queue or one node of a graph.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ringfill::cuda_emulation {

// How a step of a task ended. An error is the device's from then on.
struct Outcome {
  cudaError_t error = cudaSuccess;
  std::string report;
  bool finished = true;  // false: Poll and Run are called again
};

class Task {
 public:
  virtual ~Task() = default;
  // Whether Run can go on now. Called while the task is at the head of its stream (so an operation
  // among several devices notes here that it was reached), under the runtime's lock.
  virtual bool Poll() { return true; }
  // Called without the lock, with the memory of its stream's device and of devices() accessible.
  virtual Outcome Run() = 0;
  // In place of Run when the device has failed.
  virtual void Drop() {}
  // Others whose memory Run touches.
  virtual std::vector<int> devices() const { return {}; }
  // For the message of a hang.
  virtual const char* name() const = 0;
};

// Makes a task anew for every replay of a graph.
using TaskFactory = std::function<std::unique_ptr<Task>()>;

class FunctionTask final : public Task {
 public:
  FunctionTask(const char* name, std::function<Outcome()> run, std::vector<int> devices)
      : name_(name), run_(std::move(run)), devices_(std::move(devices)) {}
  Outcome Run() override { return run_(); }
  std::vector<int> devices() const override { return devices_; }
  const char* name() const override { return name_; }

 private:
  const char* name_;
  std::function<Outcome()> run_;
  std::vector<int> devices_;
};

inline TaskFactory MakeFunctionTask(const char* name, std::function<Outcome()> run,
                                    std::vector<int> devices = {}) {
  return [=] { return std::make_unique<FunctionTask>(name, run, devices); };
}

}  // namespace ringfill::cuda_emulation
