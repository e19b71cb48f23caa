#include "tests/testing/local_ring.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/mutex.h"
#include "engine/comm/local.h"

namespace ringfill {
namespace {

// Ends the process when it is not destroyed within a limit.
class HangGuard {
 public:
  HangGuard(int ranks, Duration limit) : thread_([this, ranks, limit] { Watch(ranks, limit); }) {}
  ~HangGuard() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

 private:
  void Watch(int ranks, Duration limit) {
    const Instant until = Clock::Real().Now() + limit;
    MutexLock lock(&mutex_);
    while (!done_) {
      if (!changed_.WaitUntil(&mutex_, until) && !done_) {
        std::fprintf(stderr, "a ring of %d ranks did not finish within %.0f s\n", ranks,
                     Seconds(limit));
        std::abort();
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::vector<absl::Status> LocalRing::Spawn(int ranks, const RankFunction& fn, Duration limit) {
  return SpawnOver([](int n) { return MakeLocalGroup(n); }, ranks, fn, limit);
}

std::vector<absl::Status> LocalRing::SpawnOver(const CommunicatorFactory& factory, int ranks,
                                               const RankFunction& fn, Duration limit) {
  const HangGuard guard(ranks, limit);
  std::vector<std::unique_ptr<Communicator>> ends = factory(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = fn(*ends[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace ringfill
