#include "tests/testing/ring_harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "base/check.h"
#include "engine/schedule/documents.h"
#include "engine/schedule/plan_check.h"
#include "engine/worker/run_step.h"
#include "tests/testing/late_device.h"

namespace ringfill {
namespace {

// A step of a tiny model takes well under a second.
constexpr Duration kHangLimit = std::chrono::minutes(4);

// Ends the process when it is not destroyed in time.
class HangGuard {
 public:
  HangGuard() : thread_([this] { Watch(); }) {}
  ~HangGuard() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

 private:
  void Watch() {
    const Instant until = Clock::Real().Now() + kHangLimit;
    MutexLock lock(&mutex_);
    while (!done_) {
      if (!changed_.WaitUntil(&mutex_, until) && !done_) {
        std::fprintf(stderr, "a step of the ring hangs\n");
        std::abort();
      }
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

std::vector<int> FirstRanks(int ranks) {
  std::vector<int> map(static_cast<size_t>(ranks));
  std::iota(map.begin(), map.end(), 0);
  return map;
}

int StripeOf(int64_t tokens, int parts, int page_tokens) {
  const int64_t each = (tokens + parts - 1) / parts;
  return static_cast<int>(std::max<int64_t>(1, (each + page_tokens - 1) / page_tokens) *
                          page_tokens);
}

}  // namespace

PlacementSpec SnakeSpec(int ranks, int stripe_tokens) {
  return {stripe_tokens, Placement(ranks, stripe_tokens).slot_map()};
}

PlacementSpec ContiguousSpec(int ranks, int64_t tokens, int page_tokens) {
  return {StripeOf(tokens, ranks, page_tokens), FirstRanks(ranks)};
}

PlacementSpec ZigzagSpec(int ranks, int64_t tokens, int page_tokens) {
  return {StripeOf(tokens, 2 * ranks, page_tokens), FirstRanks(ranks)};
}

PlacementSpec TokenStripesSpec(int ranks) { return SnakeSpec(ranks, 1); }

std::unique_ptr<RankBackend> RingHarness::CpuBackend(std::shared_ptr<const Model> model) {
  CpuBackendOptions out;
  out.model = options_.model;
  out.model.ranks = options_.ranks;
  out.pages_per_rank = options_.pages_per_rank;
  out.threads_per_rank = options_.threads;
  if (options_.late_seed != 0) out.make_stream = LateStreams(options_.late_seed);
  if (options_.tcp) {
    tcp_ = std::make_unique<TcpRing>();
    out.make_group = [this](int ranks, uint64_t epoch) { return tcp_->Form(ranks, epoch); };
  }
  return MakeCpuBackend(std::move(model), out);
}

RingHarness::RingHarness(std::shared_ptr<const Model> model, const RingHarnessOptions& options)
    : options_(options) {
  backend_ = options.make_backend ? options.make_backend(std::move(model), options)
                                  : CpuBackend(std::move(model));
  std::mt19937_64 random(7);
  ranks_.resize(static_cast<size_t>(options.ranks));
  free_.resize(ranks_.size());
  freed_.resize(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    absl::StatusOr<std::unique_ptr<Device>> device = backend_->MakeDevice(static_cast<int>(r));
    if (!device.ok()) {
      std::fprintf(stderr, "no device: %s\n", device.status().ToString().c_str());
      std::abort();
    }
    ranks_[r].device = *std::move(device);
    ranks_[r].rank =
        std::make_unique<Rank>(RankOptions{.model = backend_->config(),
                                           .geometry = backend_->geometry(),
                                           .min_round_timeout = options.min_round_timeout,
                                           .gather_bytes = options.gather_bytes},
                               *ranks_[r].device, nullptr);
    std::vector<PageId> all(static_cast<size_t>(options.pages_per_rank));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    // What nobody wrote must not be read.
    ranks_[r].device->PoisonPages(all);
    RF_CHECK(ranks_[r].device->stream().Synchronize(Clock::Real().Now() + kHangLimit).ok());
    free_[r] = std::move(all);
  }
  Reform();
}

void RingHarness::Reform() {
  ++epoch_;
  for (OneRank& at : ranks_) at.comm.reset();
  std::vector<int> members(ranks_.size());
  std::iota(members.begin(), members.end(), 0);
  absl::StatusOr<RankBackend::Ends> ends = backend_->MakeGroup(members, epoch_, nullptr);
  RF_CHECK(ends.ok());
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].comm = std::move((*ends)[r]);
  for (OneRank& at : ranks_) at.rank->Join(at.comm.get());
  backend_->StartEpoch(options_.ranks);
}

RingHarness::Sequence& RingHarness::AddSequence(std::vector<TokenId> tokens,
                                                const PlacementSpec& spec) {
  Sequence& out = sequences_.emplace_back();
  out.id = sequences_.size();
  out.placement = spec;
  const Placement placement(options_.ranks, spec.stripe_tokens, spec.slot_map);
  const int64_t page_tokens = options_.model.page_tokens;
  for (int r = 0; r < options_.ranks; ++r) {
    const int64_t local = placement.TokensBefore(r, static_cast<int64_t>(tokens.size()));
    std::vector<PageId>& free = free_[static_cast<size_t>(r)];
    const auto pages = static_cast<size_t>((local + page_tokens - 1) / page_tokens);
    RF_CHECK(free.size() >= pages);
    out.pages.emplace_back(free.end() - static_cast<ptrdiff_t>(pages), free.end());
    free.resize(free.size() - pages);
  }
  out.tokens = std::move(tokens);
  return out;
}

void RingHarness::Release(Sequence& sequence) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    freed_[r].insert(freed_[r].end(), sequence.pages[r].begin(), sequence.pages[r].end());
    // To the other end: the next sequence gets other pages.
    free_[r].insert(free_[r].begin(), sequence.pages[r].begin(), sequence.pages[r].end());
    sequence.pages[r].clear();
  }
}

void RingHarness::LosePages(StepPlan& plan, const Sequence& sequence,
                            const std::vector<Span>& spans) const {
  const Placement placement(ranks(), sequence.placement);
  const int64_t page_tokens = options_.model.page_tokens;
  for (const Span& span : spans) {
    for (int64_t p = span.begin; p < span.end; p += page_tokens) {
      const auto home = static_cast<size_t>(placement.Home(p));
      const auto page = static_cast<size_t>(placement.LocalToken(p) / page_tokens);
      plan.freed[home].push_back(sequence.pages[home][page]);
    }
  }
}

StepPlan RingHarness::NewPlan() {
  StepPlan plan;
  plan.freed = std::exchange(freed_, BlockTable(ranks_.size()));
  plan.epoch = epoch_;
  plan.step = ++step_;
  plan.ranks = options_.ranks;
  return plan;
}

int RingHarness::PlacementIn(StepPlan& plan, const PlacementSpec& spec) const {
  const auto at = std::find(plan.placements.begin(), plan.placements.end(), spec);
  const auto index = static_cast<int>(at - plan.placements.begin());
  if (at == plan.placements.end()) plan.placements.push_back(spec);
  return index;
}

PrefillChunk& RingHarness::AddChunk(StepPlan& plan, const Sequence& sequence,
                                    std::vector<Span> spans, TokenMode mode,
                                    RingStrategy strategy) const {
  PrefillChunk chunk;
  chunk.sequence = sequence.id;
  for (const Span& span : spans) {
    chunk.tokens.insert(chunk.tokens.end(), sequence.tokens.begin() + span.begin,
                        sequence.tokens.begin() + span.end);
  }
  chunk.document_starts = StartsOf(sequence.document_starts, spans);
  chunk.spans = std::move(spans);
  chunk.placement = PlacementIn(plan, sequence.placement);
  chunk.pages = sequence.pages;
  chunk.mode = mode;
  chunk.strategy = strategy;
  chunk.wants_logits = true;
  plan.chunks.push_back(std::move(chunk));
  return plan.chunks.back();
}

void RingHarness::AddDecode(StepPlan& plan, const Sequence& sequence, int64_t position) const {
  plan.decodes.push_back({sequence.id, position, sequence.tokens[static_cast<size_t>(position)],
                          PlacementIn(plan, sequence.placement), sequence.pages,
                          DocumentStart(sequence.document_starts, position)});
}

std::vector<RankStepResult> RingHarness::Run(const StepPlan& plan, const StepControl& control) {
  const absl::Status valid = CheckPlan(plan, {.ranks = options_.ranks,
                                              .page_tokens = options_.model.page_tokens,
                                              .pages_per_rank = options_.pages_per_rank,
                                              .vocab = backend_->config().vocab,
                                              .max_positions = int64_t{1} << 30});
  if (!valid.ok()) {
    std::fprintf(stderr, "a bad plan: %s\n", valid.ToString().c_str());
    std::abort();
  }
  return RunEach(std::vector<StepPlan>(ranks_.size(), plan), control);
}

std::vector<RankStepResult> RingHarness::RunEach(const std::vector<StepPlan>& plans,
                                                 const StepControl& control) {
  const HangGuard guard;
  std::vector<RankStepResult> results(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = RunStep(*ranks_[r].rank, plans[r], control); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::vector<float>> RingHarness::Logits(
    const std::vector<RankStepResult>& results) const {
  std::vector<std::vector<float>> rows;
  for (const RankStepResult& result : results) {
    if (!result.status.ok()) {
      std::fprintf(stderr, "a step failed: %s\n", result.status.ToString().c_str());
      return {};
    }
    const int64_t width = result.vocab_end - result.vocab_begin;
    if (width == 0) continue;
    rows.resize(result.logits.size() / static_cast<size_t>(width));
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* part = result.logits.data() + i * static_cast<size_t>(width);
      rows[i].insert(rows[i].end(), part, part + width);
    }
  }
  return rows;
}

std::vector<TokenId> RandomTokens(size_t n, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> out(n);
  for (TokenId& token : out) {
    token = static_cast<TokenId>(random() % static_cast<uint64_t>(vocab));
  }
  return out;
}

}  // namespace ringfill
