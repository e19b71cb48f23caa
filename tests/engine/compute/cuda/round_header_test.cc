#include "engine/compute/cuda/kernels/round_header.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "engine/stream/round_header.h"
#include "gtest/gtest.h"
#include "tests/engine/compute/cuda/device_array.h"

namespace ringfill::gpu {
namespace {

static_assert(sizeof(HeaderWords) == sizeof(RoundHeader));
static_assert(offsetof(RoundHeader, stop_mask) == 8 * HeaderWords::kStopMask);
static_assert(offsetof(RoundHeader, checksum) == 8 * HeaderWords::kChecksum);

HeaderWords WordsOf(const RoundHeader& header) {
  HeaderWords words;
  std::memcpy(&words, &header, sizeof(words));
  return words;
}

RoundHeader HeaderAt(const DeviceArray<std::byte>& at) {
  RoundHeader header;
  std::memcpy(&header, at.Read().data(), sizeof(header));
  return header;
}

RoundHeader Example() {
  return {.epoch = 7,
          .step = 1234567890123,
          .layer = 3,
          .round = 2,
          .source = 5,
          .kind = 1,
          .bytes = uint64_t{5} << 33,
          .stop_mask = 0x8000000000000005u,
          .checksum = 99};
}

DeviceArray<HeaderReport> EmptyReport() {
  return DeviceArray<HeaderReport>(std::vector<HeaderReport>{HeaderReport{}});
}

TEST(GpuRoundHeader, IsWrittenAndForwarded) {
  const DeviceArray<std::byte> at(sizeof(RoundHeader));
  const RoundHeader header = Example();
  ASSERT_EQ(WriteHeader(WordsOf(header), at.data(), nullptr), 0);
  const RoundHeader got = HeaderAt(at);
  EXPECT_EQ(std::memcmp(&got, &header, sizeof(got)), 0);
  RoundHeader next = header;
  next.round = 3;
  next.stop_mask = 1;
  ASSERT_EQ(ForwardHeader(WordsOf(next), at.data(), nullptr), 0);
  EXPECT_EQ(HeaderAt(at).round, 3u);
  EXPECT_EQ(HeaderAt(at).stop_mask, header.stop_mask);
}

TEST(GpuRoundHeader, AcceptsWhatCheckRoundHeaderAccepts) {
  const RoundHeader header = Example();
  const DeviceArray<std::byte> at(sizeof(RoundHeader));
  ASSERT_EQ(WriteHeader(WordsOf(header), at.data(), nullptr), 0);
  const DeviceArray<HeaderReport> report = EmptyReport();
  RoundHeader expected = header;
  expected.stop_mask = 0;
  expected.checksum = 0;
  ASSERT_TRUE(CheckRoundHeader(expected, header).ok());
  ASSERT_EQ(CheckHeader(WordsOf(expected), at.data(), report.data(), nullptr), 0);
  HeaderReport got = report.Read()[0];
  EXPECT_EQ(got.mismatches, 0u);
  EXPECT_EQ(got.stop_mask, header.stop_mask);
  // The masks of several headers are joined.
  RoundHeader other = header;
  other.stop_mask = 0x10;
  ASSERT_EQ(WriteHeader(WordsOf(other), at.data(), nullptr), 0);
  ASSERT_EQ(CheckHeader(WordsOf(expected), at.data(), report.data(), nullptr), 0);
  EXPECT_EQ(report.Read()[0].stop_mask, header.stop_mask | 0x10);
}

// Every field that the host compares, the device compares.
TEST(GpuRoundHeader, RefusesEveryOtherField) {
  const RoundHeader header = Example();
  for (size_t byte = 0; byte < sizeof(RoundHeader); ++byte) {
    RoundHeader changed = header;
    reinterpret_cast<std::byte*>(&changed)[byte] ^= std::byte{0x40};
    const bool refused = !CheckRoundHeader(header, changed).ok();
    const DeviceArray<std::byte> at(sizeof(RoundHeader));
    ASSERT_EQ(WriteHeader(WordsOf(changed), at.data(), nullptr), 0);
    const DeviceArray<HeaderReport> report = EmptyReport();
    ASSERT_EQ(CheckHeader(WordsOf(header), at.data(), report.data(), nullptr), 0);
    const HeaderReport got = report.Read()[0];
    EXPECT_EQ(got.mismatches, refused ? 1u : 0u) << "byte " << byte;
    if (!refused) continue;
    EXPECT_EQ(got.stop_mask, 0u);
    EXPECT_EQ(std::memcmp(&got.got, &changed, sizeof(changed)), 0) << "byte " << byte;
    EXPECT_EQ(std::memcmp(&got.expected, &header, sizeof(header)), 0);
  }
}

TEST(GpuRoundHeader, ReportsTheFirstOfSeveral) {
  const DeviceArray<std::byte> at(sizeof(RoundHeader));
  const DeviceArray<HeaderReport> report = EmptyReport();
  RoundHeader header = Example();
  for (const uint64_t epoch : {8u, 9u, 10u}) {
    header.epoch = epoch;
    ASSERT_EQ(WriteHeader(WordsOf(header), at.data(), nullptr), 0);
    ASSERT_EQ(CheckHeader(WordsOf(Example()), at.data(), report.data(), nullptr), 0);
  }
  const HeaderReport got = report.Read()[0];
  EXPECT_EQ(got.mismatches, 3u);
  EXPECT_EQ(got.got.word[1], 8u);  // the epoch
}

}  // namespace
}  // namespace ringfill::gpu
