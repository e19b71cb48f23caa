#include "tests/testing/tcp_ring.h"

#include <thread>

#include "engine/comm/tcp/tcp.h"

namespace ringfill {
namespace {

constexpr Duration kFormLimit = std::chrono::minutes(2);

}  // namespace

TcpRing::TcpRing() : secret_(Secret::Random()) {}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> TcpRing::Form(int ranks,
                                                                         uint64_t epoch) {
  while (listeners_.size() < static_cast<size_t>(ranks)) {
    RF_ASSIGN_OR_RETURN(listeners_.emplace_back(), Listener::Bind());
  }
  TcpGroupOptions options;
  options.cluster = 7;
  options.epoch = epoch;
  options.secret = &secret_;
  options.deadline = std::chrono::steady_clock::now() + kFormLimit;
  for (int r = 0; r < ranks; ++r) {
    options.members.push_back(listeners_[static_cast<size_t>(r)]->address());
  }
  std::vector<absl::StatusOr<std::unique_ptr<Communicator>>> formed(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, mine = options]() mutable {
      mine.rank = r;
      formed[static_cast<size_t>(r)] = FormTcpGroup(*listeners_[static_cast<size_t>(r)], mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Communicator>> ends;
  for (auto& end : formed) {
    RF_RETURN_IF_ERROR(end.status());
    ends.push_back(*std::move(end));
  }
  return ends;
}

}  // namespace ringfill
