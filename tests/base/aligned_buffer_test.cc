#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace ringfill {
namespace {

TEST(AlignedBufferTest, IsZeroFilledAndPageAligned) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{5000001}}) {
    const AlignedBuffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
    for (const std::byte byte : buffer.span()) ASSERT_EQ(byte, std::byte{0});
  }
}

TEST(AlignedBufferTest, EmptyOwnsNothing) {
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
  EXPECT_TRUE(AlignedBuffer(0).span().empty());
}

TEST(AlignedBufferTest, MovesTakeTheBytesAlong) {
  AlignedBuffer a(100);
  a.as<uint32_t>()[24] = 7;
  std::byte* const data = a.data();
  AlignedBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  AlignedBuffer c(50);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 100u);
  EXPECT_EQ(c.as<uint32_t>()[24], 7u);
}

}  // namespace
}  // namespace ringfill
