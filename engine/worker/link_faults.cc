#include "engine/worker/link_faults.h"

#include <algorithm>
#include <set>

namespace ringfill {

bool LinkFaults::Note(int a, int b, Instant now) {
  std::erase_if(found_, [&](const auto& entry) { return now - entry.second > options_.memory; });
  return found_.insert_or_assign(Link(std::min(a, b), std::max(a, b)), now).second;
}

std::vector<int> LinkFaults::LeaveOut(const std::vector<Link>& unmade, Instant now) {
  std::set<Link> reported;  // most by both ends
  for (const auto& [a, b] : unmade) reported.emplace(std::min(a, b), std::max(a, b));
  std::vector<Link> dead;
  for (const Link& link : reported) {
    if (!Note(link.first, link.second, now)) dead.push_back(link);
  }
  std::vector<int> left_out;
  while (!dead.empty()) {
    std::map<int, int> links;  // dead ones, by seat
    for (const auto& [a, b] : dead) {
      ++links[a];
      ++links[b];
    }
    int seat = dead.front().first;
    for (const auto& [candidate, count] : links) {
      if (count >= links[seat]) seat = candidate;
    }
    std::erase_if(dead,
                  [&](const Link& link) { return link.first == seat || link.second == seat; });
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
