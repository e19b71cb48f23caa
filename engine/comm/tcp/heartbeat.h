// Signs of life: how often the ends of a watched connection give one, and for how long one has been
// quiet.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace ringfill {

inline constexpr Duration kBeatPeriod = std::chrono::milliseconds(250);

// For how long a peer has said nothing while this process was there to hear it. Not thread-safe.
class Silence {
 public:
  // `begins`: until when its first sign may take, beside the limit of those that follow.
  explicit Silence(Instant begins = Instant()) : since_(begins) {}

  void Heard(Instant at) {
    since_ = begun_ ? std::max(since_, at) : at;
    begun_ = true;
  }
  // Somebody looks `now`, who meant to at `due`. One that comes more than a beat late was stopped,
  // perhaps with the peers and their whole machine: that time is not the peer's silence.
  void Look(Instant due, Instant now) {
    const Duration late = now - due;
    if (late > kBeatPeriod) since_ = std::max(since_, std::min(now, since_ + late));
  }
  // Negative while the peer need not have begun.
  Duration At(Instant now) const { return now - since_; }

 private:
  Instant since_;
  bool begun_ = false;
};

}  // namespace ringfill
