// Which workers a ring is formed without, because two of them cannot reach each other although both
// reach the leader. Pure bookkeeping over seats (worker_roster.h); used by the leader's thread.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace ringfill {

class LinkFaults {
 public:
  // Seats, the lower one first; a seat twice: it fails by itself.
  using Link = std::pair<int, int>;

  struct Options {
    // A worker is left out for so long, doubling each time up to the most; and from the start again
    // when it has not happened for as long as `memory`.
    Duration first_backoff = std::chrono::seconds(30);
    Duration most_backoff = std::chrono::minutes(10);
    // How long a link that was found dead is remembered.
    Duration memory = std::chrono::minutes(20);
  };

  explicit LinkFaults(const Options& options) : options_(options) {}

  // The link between two seats was found dead while a ring was formed. False when that is known.
  bool Note(int a, int b, Instant now);

  // A ring did not form: the links that were not made, between workers that answered both or at
  // which one of them failed for good. Those that were found dead before, in a ring or in a
  // formation, are believed; of their seats as few are left out as it takes, by the greedy rule:
  // again and again the one with most dead links, of two alike the one with most links unmade, then
  // the higher one. Returns them. The others are remembered for the next time, because one failure
  // may be a moment's.
  std::vector<int> LeaveOut(const std::vector<Link>& unmade, Instant now);

  bool IsOut(int seat, Instant now) const;

 private:
  struct Out {
    Instant until;
    Duration backoff{};
  };

  const Options options_;
  std::map<Link, Instant> found_;  // when last
  std::map<int, Out> out_;
};

}  // namespace ringfill
