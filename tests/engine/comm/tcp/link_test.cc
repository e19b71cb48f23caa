#include "engine/comm/tcp/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tests/engine/comm/tcp/link_ends.h"

namespace ringfill {
namespace {

TEST(LinkTest, StreamsTakeTurns) {
  LinkEnds ends;
  const Bytes bulk(3 * kMaxFramePayload), small = BytesOf("small");
  ends.a->StartSending(Link::Stream::kExchange, 1, bulk);
  ends.a->StartSending(Link::Stream::kGather, 2, small);
  ends.a->Announce(FrameType::kReady, 3, 100);
  CollectingSink sink;
  ASSERT_TRUE(ends.Pump(sink, 5).ok());
  EXPECT_FALSE(ends.a->wants_to_write());
  EXPECT_FALSE(ends.a->sending(Link::Stream::kExchange));
  // The announcement overtakes; the small message waits for one piece of the bulk at most.
  ASSERT_EQ(sink.got.size(), 5u);
  EXPECT_EQ(sink.got[0].header.tag, 3u);
  EXPECT_TRUE(sink.got[1].header.tag == 2 || sink.got[2].header.tag == 2);
}

// An abort in the middle of a frame: the bytes are given back at once, the frame is finished as it
// was, and the peer learns why.
TEST(LinkTest, AbortFinishesTheFrameFromACopy) {
  LinkEnds ends;
  auto bulk = std::make_unique<Bytes>(32 << 20, std::byte{7});
  ends.a->StartSending(Link::Stream::kExchange, 1, *bulk);
  ASSERT_TRUE(ends.a->Write().ok());
  ASSERT_TRUE(ends.a->sending(Link::Stream::kExchange)) << "the socket took everything";
  ends.a->Abort(absl::NotFoundError("the reason"));
  EXPECT_FALSE(ends.a->sending(Link::Stream::kExchange));
  std::fill(bulk->begin(), bulk->end(), std::byte{8});
  bulk.reset();
  CollectingSink sink;
  ASSERT_TRUE(ends.Pump(sink, SIZE_MAX).ok());
  ASSERT_GE(sink.got.size(), 2u);
  for (size_t i = 0; i + 1 < sink.got.size(); ++i) {
    EXPECT_EQ(sink.got[i].payload, Bytes(kMaxFramePayload, std::byte{7}));
  }
  EXPECT_EQ(sink.got.back().header.type, static_cast<uint16_t>(FrameType::kAbort));
  EXPECT_EQ(DecodeStatus(sink.got.back().payload), absl::NotFoundError("the reason"));
  EXPECT_FALSE(ends.b->mid_frame());
}

TEST(StatusCodecTest, RoundTripAndBounds) {
  for (const absl::Status& status : {absl::UnavailableError("rank 3 is gone"),
                                     absl::DataLossError(""), absl::UnauthenticatedError("no")}) {
    EXPECT_EQ(DecodeStatus(EncodeStatus(status)), status);
  }
  const absl::Status wordy = absl::InternalError(std::string(100000, 'x'));
  EXPECT_EQ(EncodeStatus(wordy).size(), kMaxStatusBytes);
  EXPECT_TRUE(absl::IsInternal(DecodeStatus(EncodeStatus(wordy))));
  EXPECT_FALSE(DecodeStatus({}).ok());
  EXPECT_FALSE(DecodeStatus(Bytes(4)).ok());  // says OK
  EXPECT_FALSE(DecodeStatus(Bytes(4, std::byte{0xff})).ok());
}

}  // namespace
}  // namespace ringfill
