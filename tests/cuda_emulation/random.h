// A small generator (splitmix64, Steele, Lea and Flood, 2014): repeatable from its seed on every
// platform, cheap enough to draw at every switch of a fiber.
#pragma once

#include <cstdint>

namespace ringfill::cuda_emulation {

class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // Below `bound`. REQUIRES: 0 < bound < 2^32.
  uint64_t Below(uint64_t bound) { return (Next() >> 32) * bound >> 32; }
  bool Coin() { return (Next() & 1) != 0; }

 private:
  uint64_t state_;
};

}  // namespace ringfill::cuda_emulation
