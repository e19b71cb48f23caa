#include "engine/schedule/span_set.h"

#include <algorithm>

namespace ringfill {

void SpanSet::Add(Span span) {
  if (span.size() <= 0) return;
  // All that touch it become one.
  const auto first = std::lower_bound(spans_.begin(), spans_.end(), span.begin,
                                      [](const Span& s, int64_t begin) { return s.end < begin; });
  auto last = first;
  while (last != spans_.end() && last->begin <= span.end) {
    span = {std::min(span.begin, last->begin), std::max(span.end, last->end)};
    ++last;
  }
  spans_.insert(spans_.erase(first, last), span);
}

void SpanSet::Remove(Span span) {
  if (span.size() <= 0) return;
  const auto first = std::lower_bound(spans_.begin(), spans_.end(), span.begin,
                                      [](const Span& s, int64_t begin) { return s.end <= begin; });
  auto last = first;
  std::vector<Span> left;
  while (last != spans_.end() && last->begin < span.end) {
    if (last->begin < span.begin) left.push_back({last->begin, span.begin});
    if (last->end > span.end) left.push_back({span.end, last->end});
    ++last;
  }
  const auto at = spans_.erase(first, last);
  spans_.insert(at, left.begin(), left.end());
}

int64_t SpanSet::size() const {
  int64_t size = 0;
  for (const Span& span : spans_) size += span.size();
  return size;
}

SpanSet SpanSet::First(int64_t n) const {
  SpanSet first;
  for (const Span& span : spans_) {
    if (n <= 0) break;
    const int64_t take = std::min(n, span.size());
    first.spans_.push_back({span.begin, span.begin + take});
    n -= take;
  }
  return first;
}

SpanSet SpanSet::Within(Span span) const {
  SpanSet within;
  for (const Span& s : spans_) {
    if (s.begin >= span.end) break;
    const Span cut = {std::max(s.begin, span.begin), std::min(s.end, span.end)};
    if (cut.size() > 0) within.spans_.push_back(cut);
  }
  return within;
}

}  // namespace ringfill
