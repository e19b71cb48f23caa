// A set of positions, kept as ascending spans that neither touch nor are empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule/step_plan.h"

namespace ringfill {

class SpanSet {
 public:
  SpanSet() = default;
  explicit SpanSet(Span span) { Add(span); }

  void Add(Span span);
  void Remove(Span span);

  bool empty() const { return spans_.empty(); }
  int64_t size() const;  // positions
  // REQUIRES: not empty.
  int64_t front() const { return spans_.front().begin; }
  const std::vector<Span>& spans() const { return spans_; }

  // The first `n` positions, all when there are fewer.
  SpanSet First(int64_t n) const;
  // Those in `span`.
  SpanSet Within(Span span) const;
  // How many positions below `end`.
  int64_t SizeBelow(int64_t end) const { return Within({0, end}).size(); }

  friend bool operator==(const SpanSet&, const SpanSet&) = default;

 private:
  std::vector<Span> spans_;
};

}  // namespace ringfill
