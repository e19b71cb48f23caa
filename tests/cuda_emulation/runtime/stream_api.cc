// Streams, events, captures and graphs.
#include "tests/cuda_emulation/runtime/api.h"
#include "tests/cuda_emulation/streams/runtime.h"

using namespace ringfill::cuda_emulation;  // NOLINT: the functions below belong to CUDA

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (stream == nullptr || flags > cudaStreamNonBlocking) return Return(cudaErrorInvalidValue);
  return Return(
      Runtime::Get().CreateStream(CurrentDevice(), flags != cudaStreamNonBlocking, stream));
}

// Priorities are hints, which the random order has no use for.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Return(Runtime::Get().DestroyStream(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Return(Runtime::Get().SynchronizeStream(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Return(Runtime::Get().QueryStream(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (flags != 0) return Return(cudaErrorInvalidValue);
  return Return(Runtime::Get().WaitEvent(stream, event));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (function == nullptr) return Return(cudaErrorInvalidValue);
  return Return(
      Runtime::Get().Enqueue(stream, MakeFunctionTask("a host function", [=]() -> Outcome {
                               function(data);
                               return {};
                             })));
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t error = CheckDevice()) return Return(error);
  if (event == nullptr) return Return(cudaErrorInvalidValue);
  *event = Runtime::Get().CreateEvent(CurrentDevice(), (flags & cudaEventDisableTiming) == 0);
  return Return(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Return(Runtime::Get().RecordEvent(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return Return(Runtime::Get().QueryEvent(event)); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Return(Runtime::Get().SynchronizeEvent(event));
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (ms == nullptr) return Return(cudaErrorInvalidValue);
  return Return(Runtime::Get().ElapsedTime(ms, start, end));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Return(Runtime::Get().DestroyEvent(event));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Return(Runtime::Get().BeginCapture(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (graph == nullptr) return Return(cudaErrorInvalidValue);
  return Return(Runtime::Get().EndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (status == nullptr) return Return(cudaErrorInvalidValue);
  *status = Runtime::Get().CaptureStatus(stream);
  return Return(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (exec == nullptr || graph == nullptr || flags != 0) return Return(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{graph->graph};
  return Return(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec == nullptr) return Return(cudaErrorInvalidValue);
  return Return(Runtime::Get().LaunchGraph(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Return(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return Return(cudaSuccess);
}

}  // extern "C"
