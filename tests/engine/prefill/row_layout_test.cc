#include "engine/prefill/row_layout.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

// A plan over one placement, with page i of a rank as its local page i of chunk c at 1000 * c + i.
class PlanUnderTest {
 public:
  PlanUnderTest(const Placement& placement, int page_tokens) : placement_(placement) {
    plan.ranks = placement.ranks();
    plan.placements.push_back({placement.stripe_tokens(), placement.slot_map()});
    options.page_tokens = page_tokens;
    options.query_tokens = 24;
    options.head_slots = 2;
  }
  void Add(std::vector<Span> spans, TokenMode mode) {
    PrefillChunk chunk;
    int64_t tokens = 0;
    for (const Span& span : spans) tokens += span.size();
    for (int64_t i = 0; i < tokens; ++i) chunk.tokens.push_back(static_cast<TokenId>(i));
    chunk.spans = std::move(spans);
    chunk.mode = mode;
    chunk.wants_logits = true;
    for (int r = 0; r < placement_.ranks(); ++r) {
      const int64_t pages = placement_.TokensBefore(r, chunk.end()) / options.page_tokens + 1;
      chunk.pages.emplace_back();
      for (int64_t i = 0; i < pages; ++i) {
        chunk.pages.back().push_back(static_cast<PageId>(1000 * plan.chunks.size() + Index(i)));
      }
    }
    plan.chunks.push_back(std::move(chunk));
  }
  StepLayout Layout() const { return StepLayout(plan, {&placement_}, options); }

  StepPlan plan;
  RowLayoutOptions options;

 private:
  const Placement& placement_;
};

// Which (chunk, position) is kept in which (page, token) of a rank.
using Kept = std::map<std::pair<PageId, int>, std::pair<int, int64_t>>;

void Keep(Kept& kept, PageId page, int token, int chunk, int64_t position) {
  EXPECT_TRUE(kept.insert({{page, token}, {chunk, position}}).second)
      << "page " << page << " token " << token << " twice";
}

// The batch of one rank: tiles cover the rows in order, each row is stored or sent exactly once,
// and no page lies in two tiles.
void CheckBatch(const StepLayout& layout, const RowBatch& batch, int rank, int page_tokens) {
  const RankRows& rows = layout.rows(rank);
  ASSERT_EQ(batch.rows(), rows.rows());
  ASSERT_EQ(batch.token.size(), batch.position.size());
  std::vector<int> handled(batch.position.size(), 0);
  std::map<PageId, size_t> tile_of_page;
  int64_t row = 0;
  size_t store = 0, send = 0;
  for (size_t t = 0; t < batch.tiles.size(); ++t) {
    const RowTile& tile = batch.tiles[t];
    EXPECT_EQ(tile.row, row);
    EXPECT_GT(tile.rows, 0);
    EXPECT_LE(tile.rows, std::max(64, page_tokens));
    EXPECT_EQ(tile.first_store, store);
    EXPECT_EQ(tile.first_send, send);
    uint64_t chunks = 0;
    bool wanted = false;
    for (int64_t r = row; r < row + tile.rows; ++r) {
      chunks |= uint64_t{1} << batch.chunk[Index(r)];
      wanted |= layout.Wanted(batch.chunk[Index(r)], batch.position[Index(r)]);
    }
    EXPECT_EQ(tile.chunks, chunks);
    EXPECT_EQ(tile.wanted, wanted);
    for (; store < tile.last_store; ++store) {
      const KvStore& s = batch.stores[store];
      EXPECT_GE(s.row, tile.row);
      EXPECT_LE(s.row + s.rows, tile.row + tile.rows);
      EXPECT_LE(s.token_in_page + s.rows, page_tokens);
      EXPECT_EQ(tile_of_page.insert({s.page, t}).first->second, t) << "page in two tiles";
      for (int i = 0; i < s.rows; ++i) ++handled[Index(s.row + i)];
    }
    for (; send < tile.last_send; ++send) {
      const KvSend& s = batch.sends[send];
      EXPECT_GE(s.row, tile.row);
      EXPECT_LE(s.row + s.rows, tile.row + tile.rows);
      for (int i = 0; i < s.rows; ++i) ++handled[Index(s.row + i)];
    }
    row += tile.rows;
  }
  EXPECT_EQ(row, batch.rows());
  for (const int count : handled) EXPECT_EQ(count, 1);
}

void CheckLayout(const PlanUnderTest& test, const Placement& placement) {
  const StepLayout layout = test.Layout();
  const int n = placement.ranks();
  const int page_tokens = test.options.page_tokens;
  std::vector<Kept> kept(Index(n));
  std::vector<std::multiset<int64_t>> seen(test.plan.chunks.size());
  for (int rank = 0; rank < n; ++rank) {
    const RankRows& rows = layout.rows(rank);
    const RowBatch batch = layout.MakeBatch(rank);
    CheckBatch(layout, batch, rank, page_tokens);
    for (const KvStore& s : batch.stores) {
      for (int i = 0; i < s.rows; ++i) {
        Keep(kept[Index(rank)], s.page, s.token_in_page + i, batch.chunk[Index(s.row + i)],
             batch.position[Index(s.row + i)]);
      }
    }
    // What lies in each slot of the outbox, and where each home puts it.
    std::map<int64_t, int64_t> row_of_slot;
    for (const KvSend& s : batch.sends) {
      for (int i = 0; i < s.rows; ++i) {
        EXPECT_TRUE(row_of_slot.insert({s.slot + i, s.row + i}).second);
      }
    }
    const std::vector<KvSection> sections = layout.SectionsOf(rank);
    int64_t end = 0;
    for (int home = 0; home < n; ++home) {
      const KvSection& section = sections[Index(home)];
      if (section.rows > 0) {
        EXPECT_GE(section.slot, end + test.options.head_slots);
        end = section.slot + section.rows;
      }
      int64_t stored = 0;
      for (const KvStore& s : layout.StoresFrom(rank, home)) {
        EXPECT_EQ(s.row, stored);
        EXPECT_LE(s.token_in_page + s.rows, page_tokens);
        for (int i = 0; i < s.rows; ++i) {
          ASSERT_TRUE(row_of_slot.count(section.slot + s.row + i));
          const int64_t row = row_of_slot[section.slot + s.row + i];
          Keep(kept[Index(home)], s.page, s.token_in_page + i, batch.chunk[Index(row)],
               batch.position[Index(row)]);
        }
        stored += s.rows;
      }
      EXPECT_EQ(stored, section.rows);
    }
    EXPECT_EQ(batch.send_slots, end);
    for (size_t r = 0; r < rows.position.size(); ++r) {
      const PrefillChunk& chunk = test.plan.chunks[Index(rows.chunk[r])];
      EXPECT_EQ(batch.token[r], chunk.tokens[Index(rows.index[r])]);
      seen[Index(rows.chunk[r])].insert(rows.position[r]);
      if (rows.position[r] == chunk.end() - 1) {
        EXPECT_EQ(layout.RankOfLast(rows.chunk[r]), rank);
      }
      if (r > 0 && rows.chunk[r] == rows.chunk[r - 1]) {
        EXPECT_LT(rows.position[r - 1], rows.position[r]);
      }
    }
  }
  // Every token is computed once, and kept where its position says.
  for (size_t c = 0; c < test.plan.chunks.size(); ++c) {
    const PrefillChunk& chunk = test.plan.chunks[c];
    if (chunk.mode == TokenMode::kReplicated) {
      EXPECT_TRUE(seen[c].empty());
      continue;
    }
    auto at = seen[c].begin();
    for (const Span& span : chunk.spans) {
      for (int64_t p = span.begin; p < span.end; ++p, ++at) {
        ASSERT_NE(at, seen[c].end());
        ASSERT_EQ(*at, p);
        const int home = placement.Home(p);
        const int64_t local = placement.LocalToken(p);
        const auto place =
            kept[Index(home)].find({chunk.pages[Index(home)][Index(local / page_tokens)],
                                    static_cast<int>(local % page_tokens)});
        ASSERT_NE(place, kept[Index(home)].end());
        EXPECT_EQ(place->second, std::make_pair(static_cast<int>(c), p));
      }
    }
    EXPECT_EQ(at, seen[c].end());
  }
}

// Over all ranks' KV, a row sees its whole prefix in its document.
void CheckVisible(const PlanUnderTest& test, int n) {
  const StepLayout layout = test.Layout();
  const std::vector<int>& chunks = layout.sharded();
  for (int rank = 0; rank < n; ++rank) {
    std::vector<int64_t> visible(Index(layout.rows(rank).rows()), 0);
    for (int kv = 0; kv < n; ++kv) {
      const AttendBatch batch =
          layout.MakeAttend(chunks, rank, kv, std::vector<KvRun>(chunks.size()));
      int64_t row = 0;
      for (const QueryTile& tile : batch.tiles) {
        EXPECT_EQ(tile.row, row);
        EXPECT_LE(tile.tokens, test.options.query_tokens);
        EXPECT_EQ(chunks[Index(tile.run)], tile.chunk);
        for (int64_t r = tile.row; r < tile.row + tile.tokens; ++r) {
          EXPECT_EQ(layout.rows(rank).chunk[Index(r)], tile.chunk);
          if (r > tile.row) {
            EXPECT_LE(batch.visible[Index(r - 1)], batch.visible[Index(r)]);
          }
          EXPECT_EQ(layout.StartOf(tile.chunk, layout.rows(rank).position[Index(r)]),
                    layout.StartOf(tile.chunk, layout.rows(rank).position[Index(tile.row)]));
          EXPECT_GE(tile.begin, 0);
          EXPECT_GE(batch.visible[Index(r)], tile.begin);
          EXPECT_LE(batch.visible[Index(r)],
                    layout.PagesOn(tile.chunk, kv).count * layout.page_tokens());
          visible[Index(r)] += batch.visible[Index(r)] - tile.begin;
        }
        row += tile.tokens;
      }
      EXPECT_EQ(row, layout.rows(rank).rows());
    }
    for (size_t r = 0; r < visible.size(); ++r) {
      const int64_t position = layout.rows(rank).position[r];
      EXPECT_EQ(visible[r], position + 1 - layout.StartOf(layout.rows(rank).chunk[r], position));
    }
  }
}

struct Shape {
  int ranks, stripe, page;
  std::vector<int> slot_map;  // empty: healthy
};

class RowLayoutTest : public testing::TestWithParam<Shape> {};

TEST_P(RowLayoutTest, EveryTokenIsComputedOnceAndKeptAtHome) {
  const Shape& shape = GetParam();
  const Placement placement = shape.slot_map.empty()
                                  ? Placement(shape.ranks, shape.stripe)
                                  : Placement(shape.ranks, shape.stripe, shape.slot_map);
  PlanUnderTest test(placement, shape.page);
  test.Add({{0, 1}}, TokenMode::kHome);
  test.Add({{5, 700}}, TokenMode::kDealt);
  test.Add({{1000, 1003}}, TokenMode::kDealt);
  test.Add({{7, 19}}, TokenMode::kReplicated);
  test.Add({{63, 65}}, TokenMode::kHome);
  test.Add({{128, 256}, {300, 301}, {333, 700}}, TokenMode::kHome);
  test.Add({{1, 2}, {30, 77}, {128, 256}, {400, 450}}, TokenMode::kDealt);
  test.Add({{5, 700}}, TokenMode::kHome);
  test.Add({{300, 700}}, TokenMode::kHome);
  test.plan.chunks.back().document_starts = {290, 301, 302, 400, 512, 699};
  test.Add({{100, 130}, {333, 700}}, TokenMode::kDealt);
  test.plan.chunks.back().document_starts = {65, 123, 333, 480, 650};
  CheckLayout(test, placement);
  CheckVisible(test, shape.ranks);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowLayoutTest,
                         testing::Values(Shape{1, 64, 64, {}}, Shape{2, 64, 16, {}},
                                         Shape{3, 64, 64, {}}, Shape{8, 128, 64, {}},
                                         Shape{4, 1, 16, {}}, Shape{3, 1, 64, {}},
                                         Shape{3, 24, 16, {}}, Shape{5, 16, 32, {}},
                                         Shape{3, 256, 16, {0, 1, 2}}, Shape{2, 700, 16, {1}},
                                         Shape{4, 32, 16, {0, 2, 2, 0, 0, 2, 2, 2}},
                                         Shape{8, 1, 64, {}}));

// Work by rank: rows, and (query, visible key) pairs.
struct Work {
  int64_t rows = 0, pairs = 0;
};

std::vector<Work> WorkOf(const StepLayout& layout, int ranks) {
  std::vector<Work> out;
  for (int rank = 0; rank < ranks; ++rank) {
    Work work;
    work.rows = layout.rows(rank).rows();
    for (const int64_t p : layout.rows(rank).position) work.pairs += p + 1;
    out.push_back(work);
  }
  return out;
}

// The largest share over the mean.
double Imbalance(const std::vector<Work>& work, int64_t Work::*field) {
  double sum = 0, largest = 0;
  for (const Work& w : work) {
    sum += static_cast<double>(w.*field);
    largest = std::max(largest, static_cast<double>(w.*field));
  }
  return largest / (sum / static_cast<double>(work.size())) - 1.0;
}

TEST(RowLayoutTest, DealtTokensBalanceAtEveryResidue) {
  for (const int n : {2, 3, 4, 8}) {
    const Placement placement(n, 64);
    for (const int64_t tokens : {64, 256, 1024, 2242, 4096}) {
      for (int64_t residue = 0; residue < 64; residue += 7) {
        const int64_t begin = 8192 + residue;
        PlanUnderTest test(placement, 64);
        test.Add({{begin, begin + tokens}}, TokenMode::kDealt);
        const std::vector<Work> work = WorkOf(test.Layout(), n);
        EXPECT_LT(Imbalance(work, &Work::rows), 0.10) << tokens << " over " << begin;
        EXPECT_LT(Imbalance(work, &Work::pairs), 0.10) << tokens << " over " << begin;
        const auto [least, most] = std::minmax_element(
            work.begin(), work.end(), [](const Work& a, const Work& b) { return a.rows < b.rows; });
        EXPECT_LE(most->rows - least->rows, 2);
      }
    }
  }
}

TEST(RowLayoutTest, HomeTokensBalanceOverALongPrompt) {
  const Placement placement(4, 64);
  PlanUnderTest test(placement, 64);
  test.Add({{0, 32768}}, TokenMode::kHome);
  const std::vector<Work> work = WorkOf(test.Layout(), 4);
  EXPECT_LT(Imbalance(work, &Work::rows), 0.03);
  EXPECT_LT(Imbalance(work, &Work::pairs), 0.03);
}

TEST(RowLayoutTest, ManyShortDealtChunksDoNotAllFallToOneRank) {
  const Placement placement(4, 64);
  PlanUnderTest test(placement, 64);
  for (int i = 0; i < 40; ++i) test.Add({{100, 101}}, TokenMode::kDealt);
  for (const Work& work : WorkOf(test.Layout(), 4)) EXPECT_EQ(work.rows, 10);
}

// Rows of a token-striped rank lie side by side in its pages, though their positions do not.
TEST(RowLayoutTest, TokenStripesShareStoresAndQueryTiles) {
  const Placement placement(4, 1);
  PlanUnderTest test(placement, 16);
  test.Add({{0, 512}}, TokenMode::kHome);
  const RowBatch batch = test.Layout().MakeBatch(1);
  EXPECT_EQ(batch.rows(), 128);
  EXPECT_EQ(batch.stores.size(), 8u);
  EXPECT_EQ(batch.tiles.size(), 2u);
  EXPECT_EQ(test.Layout().QueryTiles({0}, 1).size(), 6u);
}

}  // namespace
}  // namespace ringfill
