#include "engine/schedule/documents.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ringfill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int64_t> Of(std::vector<int64_t> starts, std::vector<Span> spans) {
  return StartsOf(starts, spans);
}

TEST(DocumentsTest, APositionIsInTheDocumentThatBeginsLastBeforeIt) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> starts{3, 10, 11};
  EXPECT_EQ(DocumentAt(starts, 0), (Span{0, 3}));
  EXPECT_EQ(DocumentAt(starts, 2), (Span{0, 3}));
  EXPECT_EQ(DocumentAt(starts, 3), (Span{3, 10}));
  EXPECT_EQ(DocumentAt(starts, 9), (Span{3, 10}));
  EXPECT_EQ(DocumentAt(starts, 10), (Span{10, 11}));
  EXPECT_EQ(DocumentAt(starts, 11), (Span{11, kNever}));
  EXPECT_EQ(DocumentAt(starts, 1000), (Span{11, kNever}));
  EXPECT_EQ(DocumentAt({}, 1000), (Span{0, kNever}));
  EXPECT_EQ(DocumentStart({}, 5), 0);
  EXPECT_EQ(DocumentStart(starts, 5), 3);
}

TEST(DocumentsTest, AChunkNeedsTheStartsOfItsTokensAlone) {
  const std::vector<int64_t> starts{3, 10, 11, 40};
  EXPECT_THAT(Of(starts, {{0, 3}}), IsEmpty());
  EXPECT_THAT(Of(starts, {{0, 4}}), ElementsAre(0, 3));
  EXPECT_THAT(Of(starts, {{5, 6}}), ElementsAre(3));
  EXPECT_THAT(Of(starts, {{5, 10}}), ElementsAre(3));
  EXPECT_THAT(Of(starts, {{5, 11}}), ElementsAre(3, 10));
  EXPECT_THAT(Of(starts, {{4, 5}, {6, 7}, {20, 50}}), ElementsAre(3, 11, 40));
  EXPECT_THAT(Of(starts, {{100, 200}}), ElementsAre(40));
  EXPECT_THAT(Of({0}, {{0, 100}}), IsEmpty());
  EXPECT_THAT(Of({}, {{0, 100}}), IsEmpty());
}

TEST(DocumentsTest, StartsOfTheirSpansSayTheSameOfEveryPosition) {
  const std::vector<int64_t> starts{0, 1, 2, 17, 30, 31, 64};
  for (int64_t begin = 0; begin < 70; ++begin) {
    for (int64_t end = begin + 1; end < 72; ++end) {
      const std::vector<Span> spans{{begin, end}, {end + 3, end + 20}};
      const std::vector<int64_t> some = StartsOf(starts, spans);
      EXPECT_LE(some.size(), static_cast<size_t>(end - begin + 17));
      for (const Span& span : spans) {
        for (int64_t p = span.begin; p < span.end; ++p) {
          ASSERT_EQ(DocumentStart(some, p), DocumentStart(starts, p)) << begin << " " << end;
        }
      }
    }
  }
}

TEST(DocumentsTest, PagesBeforeTheChunksFirstDocumentAreNotSeen) {
  const Placement placement(2, 4);  // 0-3, 12-15, 16-19 on rank 0; 4-11, 20-27 on rank 1
  PrefillChunk chunk;
  chunk.spans = {{14, 22}};
  const auto range = [&](int rank) {
    const PageRange pages = PagesSeen(chunk, placement, rank, 4);
    return std::pair(pages.first, pages.count);
  };
  EXPECT_EQ(range(0), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(range(1), std::pair(int64_t{0}, int64_t{3}));
  chunk.document_starts = {13, 18};
  EXPECT_EQ(range(0), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(range(1), std::pair(int64_t{2}, int64_t{1}));
  chunk.document_starts = {15};  // 14 sees from 0
  EXPECT_EQ(range(0), std::pair(int64_t{0}, int64_t{3}));
}

}  // namespace
}  // namespace ringfill
