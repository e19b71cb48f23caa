#include "engine/stream/round_header.h"

#include <string>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

RoundHeader Some() {
  RoundHeader header;
  header.epoch = 5;
  header.step = 6;
  header.layer = 7;
  header.round = 2;
  header.source = 1;
  header.kind = static_cast<uint32_t>(RoundKind::kQueries);
  header.bytes = 100;
  return header;
}

TEST(RoundHeaderTest, TheExpectedBufferPasses) {
  RoundHeader got = Some();
  got.stop_mask = 3;
  got.checksum = 9;
  EXPECT_TRUE(CheckRoundHeader(Some(), got).ok());
}

TEST(RoundHeaderTest, EveryOtherFieldIsComparedAndNamed) {
  const auto refused = [](const char* name, auto change) {
    RoundHeader got = Some();
    change(got);
    const absl::Status status = CheckRoundHeader(Some(), got);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name;
    EXPECT_NE(std::string(status.message()).find(name), std::string::npos) << status;
  };
  refused("magic", [](RoundHeader& h) { h.magic = 0; });
  refused("version", [](RoundHeader& h) { h.version = 2; });
  refused("epoch", [](RoundHeader& h) { h.epoch += uint64_t{1} << 32; });
  refused("step", [](RoundHeader& h) { h.step -= 1; });
  refused("layer", [](RoundHeader& h) { h.layer = 0; });
  refused("round", [](RoundHeader& h) { h.round = 3; });
  refused("source", [](RoundHeader& h) { h.source = 0; });
  refused("kind", [](RoundHeader& h) { h.kind = 0; });
  refused("bytes", [](RoundHeader& h) { h.bytes = 101; });
}

}  // namespace
}  // namespace ringfill
