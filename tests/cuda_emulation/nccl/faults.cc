#include "tests/cuda_emulation/nccl/faults.h"

#include "base/check.h"
#include "tests/cuda_emulation/streams/runtime.h"

namespace ringfill::cuda_emulation {

NcclFaults& NcclFaults::Get() {
  static auto* faults = new NcclFaults;
  return *faults;
}

void NcclFaults::Reset() {
  MutexLock lock(&mutex_);
  RF_CHECK(counters_.live == 0);
  held_ = {};
  broken_ = {};
  hung_ = {};
  lingers_ = {};
  separate_ = false;
  version_ = NCCL_VERSION_CODE;
  counters_ = {};
}

void NcclFaults::Hold(int device, bool held) {
  MutexLock lock(&mutex_);
  held_.at(static_cast<size_t>(device)) = held;
}

bool NcclFaults::IsHeld(int device) {
  MutexLock lock(&mutex_);
  return held_.at(static_cast<size_t>(device)) || broken_.at(static_cast<size_t>(device));
}

void NcclFaults::Break(int device, bool broken) {
  MutexLock lock(&mutex_);
  broken_.at(static_cast<size_t>(device)) = broken;
}

bool NcclFaults::IsBroken(int device) {
  MutexLock lock(&mutex_);
  return broken_.at(static_cast<size_t>(device));
}

void NcclFaults::HangAborts(int device, bool hang) {
  MutexLock lock(&mutex_);
  hung_.at(static_cast<size_t>(device)) = hang;
  abort_may_go_on_.SignalAll();
}

void NcclFaults::AwaitAbort(int device) {
  MutexLock lock(&mutex_);
  while (hung_.at(static_cast<size_t>(device))) abort_may_go_on_.Wait(&mutex_);
}

void NcclFaults::LetLinger(int device, bool linger) {
  MutexLock lock(&mutex_);
  lingers_.at(static_cast<size_t>(device)) = linger;
}

bool NcclFaults::Lingers(int device) {
  MutexLock lock(&mutex_);
  return lingers_.at(static_cast<size_t>(device));
}

void NcclFaults::SetVersion(int version) {
  MutexLock lock(&mutex_);
  version_ = version;
}

int NcclFaults::version() {
  MutexLock lock(&mutex_);
  return version_;
}

void NcclFaults::Separate() {
  MutexLock lock(&mutex_);
  separate_ = true;
}

bool NcclFaults::AreSeparate() {
  MutexLock lock(&mutex_);
  return separate_;
}

void NcclFaults::Count(uint64_t NcclCounters::*counter, int64_t by) {
  MutexLock lock(&mutex_);
  counters_.*counter += static_cast<uint64_t>(by);
}

NcclCounters NcclFaults::counters() {
  MutexLock lock(&mutex_);
  return counters_;
}

void ReportMisuse(const std::string& what) {
  NcclFaults::Get().Count(&NcclCounters::misuses);
  Runtime::Get().Report("NCCL: " + what);
}

void HoldNccl(int device) { NcclFaults::Get().Hold(device, true); }

void ReleaseNccl(int device) {
  NcclFaults::Get().Hold(device, false);
  Runtime::Get().Change([] {});
}

void BreakNccl(int device) { NcclFaults::Get().Break(device, true); }

void MendNccl(int device) {
  NcclFaults::Get().Break(device, false);
  Runtime::Get().Change([] {});
}

void HangNcclAborts(int device) { NcclFaults::Get().HangAborts(device, true); }
void ReleaseNcclAborts(int device) { NcclFaults::Get().HangAborts(device, false); }
void LetNcclLinger(int device) { NcclFaults::Get().LetLinger(device, true); }

void EndNccl(int device) {
  NcclFaults::Get().LetLinger(device, false);
  Runtime::Get().Change([] {});
}

void SeparateNcclRanks() { NcclFaults::Get().Separate(); }
void SetNcclVersion(int version) { NcclFaults::Get().SetVersion(version); }
void ResetNccl() { NcclFaults::Get().Reset(); }
NcclCounters GetNcclCounters() { return NcclFaults::Get().counters(); }

}  // namespace ringfill::cuda_emulation
