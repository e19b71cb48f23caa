// Turns the emulated library's attention on for a whole test program.
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/emulated_fused/fused_emulation.h"

namespace ringfill {
namespace {

class EmulatedLibrary final : public testing::Environment {
  void SetUp() override { cuda_emulation::SetFused({.there = true}); }
};

const testing::Environment* const kLibrary = testing::AddGlobalTestEnvironment(new EmulatedLibrary);

}  // namespace
}  // namespace ringfill
