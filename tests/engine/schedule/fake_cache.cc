#include "tests/engine/schedule/fake_cache.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace ringfill {

FakeCache::FakeCache(int ranks, int64_t pages, int page_tokens)
    : pages_(pages), page_tokens_(page_tokens) {
  for (int r = 0; r < ranks; ++r) {
    memory_.push_back(std::make_unique<Memory>(static_cast<size_t>(pages * page_tokens)));
  }
}

void FakeCache::Know(SequenceId id, std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) Append(id, token);
}

void FakeCache::Append(SequenceId id, TokenId token) {
  std::vector<uint64_t>& prefix = prefix_[id];
  const uint64_t before = prefix.empty() ? 14695981039346656037u : prefix.back();
  prefix.push_back((before ^ static_cast<uint64_t>(token + 1)) * 1099511628211u);
}

uint64_t FakeCache::PrefixOf(SequenceId id, int64_t position) const {
  const auto it = prefix_.find(id);
  if (it == prefix_.end() || position >= static_cast<int64_t>(it->second.size())) {
    ADD_FAILURE() << "sequence " << id << " has no token at " << position;
    return 0;
  }
  return it->second[static_cast<size_t>(position)];
}

HeldToken& FakeCache::At(const BlockTable& pages, const Placement& placement, int64_t position) {
  const int rank = placement.Home(position);
  const int64_t local = placement.LocalToken(position);
  const PageId page =
      pages[static_cast<size_t>(rank)].at(static_cast<size_t>(local / page_tokens_));
  return memory_[static_cast<size_t>(rank)]->at(
      static_cast<size_t>(page * page_tokens_ + local % page_tokens_));
}

void FakeCache::CheckSeen(SequenceId id, int64_t position, const BlockTable& pages,
                          const Placement& placement) {
  int64_t wrong = 0;
  for (int64_t p = 0; p <= position; ++p) {
    if (At(pages, placement, p) != HeldToken{p, PrefixOf(id, p)}) {
      if (wrong++ == 0) ADD_FAILURE() << "sequence " << id << ": " << p << " is not there";
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << position + 1 << " that sequence " << id << " sees";
}

void FakeCache::Store(SequenceId id, int64_t position, const BlockTable& pages,
                      const Placement& placement) {
  At(pages, placement, position) = {position, PrefixOf(id, position)};
}

// A page that is written belongs to one table alone.
void FakeCache::CheckTables(const StepPlan& plan) const {
  std::vector<std::map<PageId, int>> holders(memory_.size());
  std::vector<std::set<PageId>> written(memory_.size());
  std::set<SequenceId> seen;
  const auto check = [&](SequenceId id, const BlockTable& pages, int index,
                         std::span<const Span> spans) {
    EXPECT_TRUE(seen.insert(id).second) << "sequence " << id << " twice in one step";
    const Placement placement(plan.ranks, plan.placements.at(static_cast<size_t>(index)));
    ASSERT_EQ(pages.size(), memory_.size());
    for (size_t r = 0; r < pages.size(); ++r) {
      for (const PageId page : pages[r]) {
        ASSERT_LT(page, pages_);
        ++holders[r][page];
      }
    }
    for (const Span& span : spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        const auto rank = static_cast<size_t>(placement.Home(p));
        written[rank].insert(
            pages[rank].at(static_cast<size_t>(placement.LocalToken(p) / page_tokens_)));
      }
    }
  };
  for (const PrefillChunk& chunk : plan.chunks) {
    check(chunk.sequence, chunk.pages, chunk.placement, chunk.spans);
  }
  for (const DecodeToken& decode : plan.decodes) {
    const Span span = {decode.position, decode.position + 1};
    check(decode.sequence, decode.pages, decode.placement, {&span, 1});
  }
  for (size_t r = 0; r < written.size(); ++r) {
    for (const PageId page : written[r]) EXPECT_EQ(holders[r][page], 1) << "page " << page;
  }
}

void FakeCache::Execute(const StepPlan& plan) {
  ASSERT_EQ(plan.ranks, ranks());
  CheckTables(plan);
  for (size_t r = 0; r < plan.freed.size(); ++r) {
    for (const PageId page : plan.freed[r]) {
      std::fill_n(memory_[r]->begin() + static_cast<int64_t>(page) * page_tokens_, page_tokens_,
                  HeldToken());
    }
  }
  // All stores before all reads, as in a layer.
  for (const PrefillChunk& chunk : plan.chunks) {
    const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(chunk.placement)]);
    for (const Span& span : chunk.spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        Store(chunk.sequence, p, chunk.pages, placement);
      }
    }
  }
  for (const DecodeToken& decode : plan.decodes) {
    const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(decode.placement)]);
    Store(decode.sequence, decode.position, decode.pages, placement);
  }
  for (const PrefillChunk& chunk : plan.chunks) {
    const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(chunk.placement)]);
    CheckSeen(chunk.sequence, chunk.end() - 1, chunk.pages, placement);
  }
  for (const DecodeToken& decode : plan.decodes) {
    const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(decode.placement)]);
    CheckSeen(decode.sequence, decode.position, decode.pages, placement);
  }
}

void FakeCache::ExecuteTorn(const StepPlan& plan, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto tear = [&](const BlockTable& pages, int index, std::span<const Span> spans) {
    const Placement placement(plan.ranks, plan.placements[static_cast<size_t>(index)]);
    for (const Span& span : spans) {
      for (int64_t p = span.begin; p < span.end; ++p) {
        if (rng() % 2 == 0) At(pages, placement, p) = HeldToken();
      }
    }
  };
  for (const PrefillChunk& chunk : plan.chunks) tear(chunk.pages, chunk.placement, chunk.spans);
  for (const DecodeToken& decode : plan.decodes) {
    const Span span = {decode.position, decode.position + 1};
    tear(decode.pages, decode.placement, {&span, 1});
  }
}

void FakeCache::Regroup(std::span<const int> from) {
  std::vector<std::unique_ptr<Memory>> old = std::move(memory_);
  memory_.clear();
  for (const int was : from) {
    memory_.push_back(was < 0 ? std::make_unique<Memory>(static_cast<size_t>(pages_ * page_tokens_))
                              : std::move(old[static_cast<size_t>(was)]));
  }
}

}  // namespace ringfill
