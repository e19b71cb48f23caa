// A TCP proxy for tests that does to the bytes between two peers what networks and attackers do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/comm/tcp/socket.h"

namespace ringfill {

enum class Fault {
  kNone,
  kDelay,      // every piece is held back for `delay`
  kTrickle,    // one byte every `delay`
  kBlackhole,  // nothing comes through any more, the connections stay open
  kCut,        // the connections are reset
  kEnd,        // the connections are closed in order
  kFlip,       // one bit of the next byte is turned over, once
  kReplay,     // the `replay_bytes` before are sent once more, once
  kDrop,       // the next byte is left out, once
};

struct FaultPlan {
  Fault fault = Fault::kNone;
  enum class Direction { kToTarget, kToCaller };
  Direction direction = Direction::kToTarget;  // kBlackhole, kCut and kEnd take both along
  int64_t after_bytes = 0;    // of the direction, counted from the setting of the plan
  int flip_bit = 0;           // 0..7
  int64_t replay_bytes = 64;  // at most what has passed, and 1 MiB
  Duration delay = std::chrono::milliseconds(1);
};

// Forwards up to 64 connections on loopback, on a thread of its own.
class FaultProxy {
 public:
  // `target` is called anew for each caller.
  static std::unique_ptr<FaultProxy> Start(std::string target, const FaultPlan& plan = {});
  ~FaultProxy();

  const std::string& address() const { return address_; }
  // From now on, for each connection of its own; in force for all that is sent later.
  void Set(const FaultPlan& plan);
  // Forwarded so far, both directions of all connections.
  int64_t bytes() const { return bytes_.load(); }
  // How often the plan's fault came to pass.
  int64_t faults() const { return faults_.load(); }

 private:
  struct Pipe;
  struct Route;

  FaultProxy(std::string target, const FaultPlan& plan, Fd listener, std::string address);
  void Run();
  void AcceptCaller();
  void Apply(Route& route, Pipe& pipe, const FaultPlan& plan, std::vector<std::byte> came);
  void Move(Route& route, Pipe& pipe, const FaultPlan& plan);
  void Flush(Route& route, Pipe& pipe);

  const std::string target_;
  const Fd listener_;
  const std::string address_;
  Waker waker_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> bytes_{0}, faults_{0};
  Mutex mutex_;
  FaultPlan plan_ ABSL_GUARDED_BY(mutex_);
  uint64_t plan_number_ ABSL_GUARDED_BY(mutex_) = 1, taken_number_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar taken_;
  std::vector<std::unique_ptr<Route>> routes_;  // of the thread
  std::thread thread_;
};

}  // namespace ringfill
