// Protection keys of the CPU (x86's PKU), one a device: memory that a thread may touch or not by a
// register of its own. Where the CPU has them, opening and closing a device's memory takes
// nanoseconds whatever its size, and holds for the thread that runs queued work alone.
#pragma once

namespace ringfill::cuda_emulation {

class ProtectionKeys {
 public:
  // Allocates a key for each of `count` devices.
  explicit ProtectionKeys(int count);

  // False on CPUs without them.
  bool available() const { return available_; }
  // For pkey_mprotect; memory under it is closed to every thread.
  int key(int device) const { return first_ + device; }
  // For the calling thread, until as many calls of Close.
  void Open(int device) const;
  void Close(int device) const;

 private:
  int first_ = -1;
  bool available_ = false;
};

}  // namespace ringfill::cuda_emulation
