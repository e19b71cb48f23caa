// The max-plus recurrences of a step: when each rank's stream and lane are free, as operations and
// transfers of all ranks are added in program order. What rank r computes in a round and what moves
// meanwhile overlap; a round is exposed by what the slower of the two takes more. There is no
// barrier between rounds, so a slow rank holds up its neighbours only as far as the ring does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/cost/figures.h"

namespace ringfill {

class RingTimes {
 public:
  explicit RingTimes(const Figures& figures)
      : figures_(figures),
        stream_(static_cast<size_t>(figures.ranks())),
        lane_(stream_.size()),
        busy_(stream_.size()) {}

  int ranks() const { return figures_.ranks(); }
  void Run(int rank, double seconds) {
    stream_[Index(rank)] += seconds;
    busy_[Index(rank)] += seconds;
  }
  // [ranks] when what was queued so far has run.
  const std::vector<double>& Record() const { return stream_; }
  // One exchange on each rank: bytes[r] go from rank r to rank r + distance; 0: no message. `after`
  // [ranks]. Returns [ranks] when the exchange of each rank is done.
  std::vector<double> Shift(int distance, const std::vector<int64_t>& bytes,
                            const std::vector<double>& after) {
    const int n = ranks();
    std::vector<double> ready(after.size());
    for (size_t r = 0; r < ready.size(); ++r) ready[r] = std::max(lane_[r], after[r]);
    std::vector<double> end = ready;
    for (int r = 0; r < n; ++r) {
      if (bytes[Index(r)] == 0) continue;
      const int to = ((r + distance) % n + n) % n;
      const double done = std::max(ready[Index(r)], ready[Index(to)]) +
                          figures_.LinkSeconds(r, to, bytes[Index(r)]);
      end[Index(r)] = std::max(end[Index(r)], done);
      end[Index(to)] = std::max(end[Index(to)], done);
    }
    for (int r = 0; r < n; ++r) {
      const int from = ((r - distance) % n + n) % n;
      // A rank without a message starts no exchange.
      if (bytes[Index(r)] != 0 || bytes[Index(from)] != 0) lane_[Index(r)] = end[Index(r)];
    }
    return end;
  }
  // An all-gather behind all that is queued, waited for.
  void AllGather(int64_t bytes) {
    double begin = 0;
    for (size_t r = 0; r < stream_.size(); ++r) {
      begin = std::max({begin, stream_[r], lane_[r]});
    }
    const double end = begin + figures_.GatherSeconds(bytes);
    std::fill(stream_.begin(), stream_.end(), end);
    std::fill(lane_.begin(), lane_.end(), end);
  }
  void Wait(int rank, const std::vector<double>& event) {
    stream_[Index(rank)] = std::max(stream_[Index(rank)], event[Index(rank)]);
  }
  double Latest() const { return *std::max_element(stream_.begin(), stream_.end()); }
  double BusiestRank() const { return *std::max_element(busy_.begin(), busy_.end()); }
  // The same state `seconds` later.
  void Skip(double seconds) {
    for (double& t : stream_) t += seconds;
    for (double& t : lane_) t += seconds;
  }
  void AddBusy(const std::vector<double>& seconds, double times) {
    for (size_t r = 0; r < busy_.size(); ++r) busy_[r] += seconds[r] * times;
  }
  const std::vector<double>& busy() const { return busy_; }

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }

  const Figures& figures_;
  std::vector<double> stream_;  // [ranks]
  std::vector<double> lane_;    // [ranks]
  std::vector<double> busy_;    // [ranks]
};

}  // namespace ringfill
