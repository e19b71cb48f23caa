// Ctrl-C and SIGTERM cancel the running RPC, so that the daemon frees its pages at once.
#pragma once

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"

namespace ringfill::cli {

// One per process, made before any other thread: it blocks SIGINT and SIGTERM in all threads and
// takes them in a thread of its own. A second signal ends the process at once (exit code 1).
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // A signal arrived. Thread-safe.
  bool requested() const { return requested_.load(); }

  // While alive, a signal cancels `context`; at once when one had arrived before.
  class Scope {
   public:
    Scope(Interrupt& interrupt, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt& interrupt_;
  };

 private:
  void Run();

  std::atomic<bool> requested_ = false;
  absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace ringfill::cli
