#include "engine/worker/link_faults.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace ringfill {
namespace {

std::map<int, int> CountBySeat(const std::set<LinkFaults::Link>& links) {
  std::map<int, int> counts;
  for (const auto& [a, b] : links) {
    ++counts[a];
    ++counts[b];
  }
  return counts;
}

// Of the seats of `dead`: the one with most of them, then of `unmade`, then the highest.
int WorstSeat(const std::set<LinkFaults::Link>& dead, const std::set<LinkFaults::Link>& unmade) {
  const std::map<int, int> suspects = CountBySeat(unmade);
  std::tuple<int, int, int> worst;
  for (const auto& [seat, count] : CountBySeat(dead)) {
    worst = std::max(worst, std::tuple(count, suspects.at(seat), seat));
  }
  return std::get<2>(worst);
}

}  // namespace

bool LinkFaults::Note(int a, int b, Instant now) {
  std::erase_if(found_, [&](const auto& entry) { return now - entry.second > options_.memory; });
  return found_.insert_or_assign(Link(std::min(a, b), std::max(a, b)), now).second;
}

std::vector<int> LinkFaults::LeaveOut(const std::vector<Link>& unmade, Instant now) {
  std::set<Link> reported;  // most by both ends
  for (const auto& [a, b] : unmade) reported.emplace(std::min(a, b), std::max(a, b));
  std::set<Link> dead;
  for (const Link& link : reported) {
    if (!Note(link.first, link.second, now)) dead.insert(link);
  }
  std::vector<int> left_out;
  while (!dead.empty()) {
    const int seat = WorstSeat(dead, reported);
    for (std::set<Link>* links : {&dead, &reported}) {
      std::erase_if(*links,
                    [&](const Link& link) { return link.first == seat || link.second == seat; });
    }
    Out& out = out_[seat];
    const bool again = out.backoff > Duration(0) && now - out.until < options_.memory;
    out.backoff =
        again ? std::min<Duration>(2 * out.backoff, options_.most_backoff) : options_.first_backoff;
    out.until = now + out.backoff;
    left_out.push_back(seat);
  }
  return left_out;
}

bool LinkFaults::IsOut(int seat, Instant now) const {
  const auto it = out_.find(seat);
  return it != out_.end() && now < it->second.until;
}

}  // namespace ringfill
