// NCCL's calls.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/cuda_emulation/nccl/clique.h"
#include "tests/cuda_emulation/nccl/faults.h"
#include "tests/cuda_emulation/random.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace emulation = ringfill::cuda_emulation;
using ringfill::Mutex;
using ringfill::MutexLock;

// Never freed, so that calls on a communicator that is gone can be told. Guarded by World's lock.
struct ncclComm {
  std::shared_ptr<emulation::Clique> clique;
  int rank = 0;
  int device = 0;
  bool alive = true;
  ncclResult_t failure = ncclSuccess;
  std::string last_error;
  // The call before is still at work until so many looks at the error, then its launch is queued.
  int looks_left = 0;
  bool queueing = false;
  cudaStream_t stream = nullptr;
  std::vector<emulation::NcclOperation> launch;
};

namespace {

using emulation::NcclOperation;

constexpr uint64_t kMostLooks = 3;
constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct Called {
  ncclComm_t comm;
  cudaStream_t stream;
  NcclOperation operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Called> group;

struct World {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<emulation::Clique>> cliques ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<ncclComm>> comms ABSL_GUARDED_BY(mutex);
  uint64_t ids ABSL_GUARDED_BY(mutex) = 0;

  static World& Get() {
    static auto* world = new World;
    return *world;
  }
};

int DrawLooks() {
  return static_cast<int>(
      emulation::Random(emulation::Runtime::Get().DrawSeed()).Below(kMostLooks + 1));
}

// Null when the handle is none of a living communicator.
ncclComm* Living(ncclComm_t comm, const char* call) {
  if (comm != nullptr) {
    World& world = World::Get();
    MutexLock lock(&world.mutex);
    for (const auto& known : world.comms) {
      if (known.get() == comm && comm->alive) return comm;
    }
  }
  emulation::ReportMisuse(std::string(call) + " on a communicator that was never made or is gone");
  return nullptr;
}

ncclResult_t Refuse(ncclComm* comm, ncclResult_t result, const std::string& why) {
  {
    MutexLock lock(&World::Get().mutex);
    comm->last_error = why;
  }
  emulation::ReportMisuse(why);
  return result;
}

// What the communicator's next call would meet. Queues a launch that has waited long enough.
ncclResult_t State(ncclComm* comm) {
  std::vector<NcclOperation> launch;
  {
    MutexLock lock(&World::Get().mutex);
    if (comm->failure != ncclSuccess) return comm->failure;
    for (const int device : comm->clique->devices()) {
      if (device >= 0 && device != comm->device && emulation::NcclFaults::Get().IsBroken(device)) {
        comm->last_error = "the process of device " + std::to_string(device) + " is gone";
        return comm->failure = ncclRemoteError;
      }
    }
    if (!comm->clique->complete() || comm->queueing) return ncclInProgress;
    if (comm->looks_left > 0) {
      --comm->looks_left;
      return ncclInProgress;
    }
    if (comm->launch.empty()) return ncclSuccess;
    launch.swap(comm->launch);
    comm->queueing = true;
  }
  const cudaError_t error = emulation::Runtime::Get().Enqueue(
      comm->stream, comm->clique->MakeLaunch(comm->rank, std::move(launch)));
  MutexLock lock(&World::Get().mutex);
  comm->queueing = false;
  if (error != cudaSuccess) {
    comm->last_error = std::string("queueing failed: ") + cudaGetErrorString(error);
    comm->failure = ncclUnhandledCudaError;
  }
  return comm->failure;
}

ncclResult_t LaunchGroup(const std::vector<Called>& calls) {
  ncclResult_t result = ncclSuccess;
  std::vector<ncclComm_t> comms;
  for (const Called& call : calls) {
    if (std::find(comms.begin(), comms.end(), call.comm) == comms.end()) comms.push_back(call.comm);
  }
  for (ncclComm_t comm : comms) {
    const cudaStream_t stream = std::find_if(calls.begin(), calls.end(), [comm](const Called& c) {
                                  return c.comm == comm;
                                })->stream;
    std::vector<NcclOperation> launch;
    for (const Called& call : calls) {
      if (call.comm != comm) continue;
      if (call.stream != stream) {
        return Refuse(comm, ncclInvalidUsage, "a group uses several streams of one communicator");
      }
      if (call.operation.bytes > 0) launch.push_back(call.operation);
    }
    if (emulation::Runtime::Get().DeviceOfStream(stream) != comm->device) {
      return Refuse(comm, ncclInvalidUsage, "the stream is not of the communicator's device");
    }
    const int looks = DrawLooks();
    {
      MutexLock lock(&World::Get().mutex);
      comm->stream = stream;
      comm->launch = std::move(launch);
      comm->looks_left = looks;
    }
    const ncclResult_t state = State(comm);
    if (result == ncclSuccess || result == ncclInProgress) {
      if (state != ncclSuccess) result = state;
    }
  }
  return result;
}

ncclResult_t Call(const char* name, ncclComm_t handle, cudaStream_t stream, NcclOperation operation,
                  ncclDataType_t type) {
  ncclComm* comm = Living(handle, name);
  if (comm == nullptr) return ncclInvalidArgument;
  if (static_cast<size_t>(type) >= std::size(kTypeBytes)) {
    return Refuse(comm, ncclInvalidArgument, std::string(name) + ": unknown type");
  }
  if (operation.peer < 0 || operation.peer >= comm->clique->ranks()) {
    return Refuse(comm, ncclInvalidArgument, std::string(name) + ": no such peer");
  }
  const ncclResult_t state = State(comm);
  if (state == ncclInProgress) {
    return Refuse(comm, ncclInvalidUsage,
                  std::string(name) + " before the call before has come to its end");
  }
  if (state != ncclSuccess) return state;
  operation.type = type;
  operation.bytes = operation.count * kTypeBytes[type];
  group.push_back({comm, stream, operation});
  if (group_depth > 0) return ncclSuccess;
  std::vector<Called> alone;
  alone.swap(group);
  return LaunchGroup(alone);
}

void End(ncclComm* comm) {
  comm->clique->Leave(comm->rank);
  {
    MutexLock lock(&World::Get().mutex);
    comm->alive = false;
    comm->launch.clear();
  }
  emulation::NcclFaults::Get().Count(&emulation::NcclCounters::live, -1);
  emulation::Runtime::Get().Change([] {});
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = emulation::NcclFaults::Get().version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  MutexLock lock(&World::Get().mutex);
  const std::string text = "emulated " + std::to_string(++World::Get().ids);
  std::memcpy(id->internal, text.data(), text.size());
  World::Get().cliques[text] = nullptr;
  emulation::NcclFaults::Get().Count(&emulation::NcclCounters::ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  constexpr unsigned kMagic = 0xcafebeef;
  *made = nullptr;
  if (config == nullptr || config->magic != kMagic || config->blocking != 0) {
    emulation::ReportMisuse("a communicator that is not non-blocking");
    return ncclInvalidArgument;
  }
  if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  const int looks = DrawLooks();
  auto comm = std::make_unique<ncclComm>();
  MutexLock lock(&World::Get().mutex);
  const auto found = World::Get().cliques.find(std::string(id.internal));
  if (found == World::Get().cliques.end()) return ncclInvalidArgument;
  if (found->second == nullptr) found->second = std::make_shared<emulation::Clique>(ranks);
  comm->clique = found->second;
  comm->rank = rank;
  comm->device = emulation::CurrentDevice();
  comm->looks_left = looks;
  if (comm->clique->ranks() != ranks) {
    comm->last_error = "ranks of one id disagree about how many they are";
    comm->failure = ncclInvalidUsage;
  } else {
    comm->last_error = comm->clique->Join(rank, comm->device);
    if (!comm->last_error.empty()) comm->failure = ncclInvalidUsage;
  }
  *made = comm.get();
  World::Get().comms.push_back(std::move(comm));
  emulation::NcclFaults::Get().Count(&emulation::NcclCounters::live);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  ncclComm* comm = Living(handle, "ncclCommGetAsyncError");
  if (comm == nullptr) return ncclInvalidArgument;
  *error = State(comm);
  if (emulation::Runtime::Get().DeviceError(comm->device) != cudaSuccess) {
    *error = ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  // Of the last failure alone: it is not written again while somebody reads it.
  return handle == nullptr ? "" : handle->last_error.c_str();
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kSend;
  operation.peer = peer;
  operation.from = static_cast<const std::byte*>(from);
  operation.count = count;
  return Call("ncclSend", comm, stream, operation, type);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kRecv;
  operation.peer = peer;
  operation.to = static_cast<std::byte*>(to);
  operation.count = count;
  return Call("ncclRecv", comm, stream, operation, type);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  NcclOperation operation;
  operation.kind = NcclOperation::Kind::kAllGather;
  operation.from = static_cast<const std::byte*>(from);
  operation.to = static_cast<std::byte*>(to);
  operation.count = count;
  return Call("ncclAllGather", comm, stream, operation, type);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) {
    emulation::ReportMisuse("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group_depth > 0) return ncclSuccess;
  std::vector<Called> calls;
  calls.swap(group);
  return LaunchGroup(calls);
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  ncclComm* comm = Living(handle, "ncclCommAbort");
  if (comm == nullptr) return ncclInvalidArgument;
  emulation::NcclFaults::Get().AwaitAbort(comm->device);
  emulation::NcclFaults::Get().Count(&emulation::NcclCounters::aborted);
  End(comm);
  return ncclSuccess;
}
