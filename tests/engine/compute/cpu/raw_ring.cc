#include "tests/engine/compute/cpu/raw_ring.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/compute/slices.h"

namespace ringfill {

Instant InTwoMinutes() { return Clock::Real().Now() + std::chrono::minutes(2); }

namespace {

CpuModelOptions WithRanks(CpuModelOptions options, int ranks) {
  options.ranks = ranks;
  return options;
}

void MustWork(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

void Sync(Device& device) { MustWork(device.stream().Synchronize(InTwoMinutes())); }

// Gathers rows into stores of one page each, and those into tiles.
struct TileMaker {
  RowBatch& batch;
  int64_t tile_rows;

  void Store(int64_t row, PageId page, int token_in_page) {
    if (!batch.stores.empty()) {
      KvStore& last = batch.stores.back();
      if (last.page == page && last.row + last.rows == row &&
          last.token_in_page + last.rows == token_in_page) {
        ++last.rows;
        return;
      }
    }
    batch.stores.push_back({row, 1, page, token_in_page});
  }
  void MakeTiles() {
    for (size_t s = 0; s < batch.stores.size(); ++s) {
      const KvStore& store = batch.stores[s];
      if (batch.tiles.empty() || batch.tiles.back().rows + store.rows > tile_rows) {
        batch.tiles.push_back({store.row, 0, s, s, 0, 0, 0, true});
      }
      RowTile& tile = batch.tiles.back();
      tile.rows += store.rows;
      tile.last_store = s + 1;
      for (int i = 0; i < store.rows; ++i) {
        tile.chunks |= uint64_t{1} << batch.chunk[static_cast<size_t>(store.row + i)];
      }
    }
  }
};

}  // namespace

struct RawRing::RankState {
  std::shared_ptr<RowBatch> batch;
  std::vector<std::shared_ptr<AttendBatch>> sight;      // [ranks] of each source
  std::shared_ptr<const std::vector<PageId>> my_pages;  // of the shard
  DeviceBuffer x, angles, q, state, shard;
  EventPtr copied, attended;
  std::shared_ptr<LayerFlags> flags = std::make_shared<LayerFlags>();

  Device::RowBuffers buffers() const { return {x.data(), angles.data(), q.data(), nullptr}; }
};

RawRing::RawRing(std::shared_ptr<const Model> model, const RawRingOptions& options)
    : options_(options),
      model_(std::move(model), WithRanks(options.model, options.ranks), Clock::Real()),
      pages_used_(static_cast<size_t>(options.ranks), 0) {
  for (int r = 0; r < options.ranks; ++r) {
    devices_.push_back(
        std::make_unique<CpuDevice>(model_, CpuDeviceOptions{.pages = options.pages,
                                                             .threads = options.threads,
                                                             .make_stream = options.make_stream}));
  }
}

RawSequence RawRing::NewSequence() const {
  RawSequence out;
  out.pages.resize(static_cast<size_t>(options_.ranks));
  return out;
}

int RawRing::Home(int64_t position) const {
  return static_cast<int>(position / options_.stripe_tokens % options_.ranks);
}

int64_t RawRing::Local(int64_t position) const { return Kept(Home(position), position); }

int64_t RawRing::Kept(int rank, int64_t end) const {
  int64_t count = 0;
  for (int64_t p = 0; p < end; ++p) count += Home(p) == rank ? 1 : 0;
  return count;
}

void RawRing::Extend(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    RawSequence& sequence = *chunk.sequence;
    sequence.tokens.insert(sequence.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    for (int r = 0; r < options_.ranks; ++r) {
      const int64_t tokens = Kept(r, static_cast<int64_t>(sequence.tokens.size()));
      const int page_tokens = options_.model.page_tokens;
      auto& pages = sequence.pages[static_cast<size_t>(r)];
      while (static_cast<int64_t>(pages.size()) * page_tokens < tokens) {
        // Scattered over the pool.
        int64_t& used = pages_used_[static_cast<size_t>(r)];
        RF_CHECK(used < options_.pages);
        pages.push_back(static_cast<PageId>(used++ * 7 % options_.pages));
      }
    }
  }
}

std::shared_ptr<RowBatch> RawRing::HomeBatch(int rank, const std::vector<Chunk>& chunks) {
  auto batch = std::make_shared<RowBatch>();
  TileMaker maker{*batch, options_.tile_rows};
  for (size_t c = 0; c < chunks.size(); ++c) {
    const RawSequence& sequence = *chunks[c].sequence;
    const auto end = static_cast<int64_t>(sequence.tokens.size());
    for (int64_t p = end - static_cast<int64_t>(chunks[c].tokens.size()); p < end; ++p) {
      if (Home(p) != rank) continue;
      const int64_t row = batch->rows();
      batch->token.push_back(sequence.tokens[static_cast<size_t>(p)]);
      batch->position.push_back(p);
      batch->chunk.push_back(static_cast<int>(c));
      const int64_t local = Local(p);
      const int page_tokens = options_.model.page_tokens;
      maker.Store(
          row, sequence.pages[static_cast<size_t>(rank)][static_cast<size_t>(local / page_tokens)],
          static_cast<int>(local % page_tokens));
    }
  }
  maker.MakeTiles();
  return batch;
}

std::shared_ptr<AttendBatch> RawRing::Sight(const RowBatch& batch, int source,
                                            const std::vector<Chunk>& chunks) const {
  auto sight = std::make_shared<AttendBatch>();
  size_t offset = 0;
  for (const Chunk& chunk : chunks) {
    const auto& pages = chunk.sequence->pages[static_cast<size_t>(source)];
    sight->runs.push_back({pages, offset});
    offset += pages.size() * model_.geometry().LayerBytes();
  }
  for (int64_t row = 0; row < batch.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    sight->visible.push_back(Kept(source, batch.position[r] + 1));
    const int chunk = batch.chunk[r];
    if (sight->tiles.empty() || sight->tiles.back().chunk != chunk ||
        sight->tiles.back().tokens == options_.query_tokens) {
      sight->tiles.push_back({chunk, row, 0, chunk, true});
    }
    ++sight->tiles.back().tokens;
  }
  return sight;
}

void RawRing::RunRing(std::vector<RankState>& states) {
  const int layers = model_.config().layers;
  for (int r = 0; r < ranks(); ++r) {
    RankState& s = states[static_cast<size_t>(r)];
    device(r).EmbedRows(s.batch, s.buffers());
    device(r).RunLayers({.project = 0, .batch = s.batch, .buffers = s.buffers()});
  }
  for (int layer = 0; layer < layers; ++layer) {
    for (int r = 0; r < ranks(); ++r) {
      RankState& s = states[static_cast<size_t>(r)];
      for (const RankState& reader : states) {
        device(r).stream().WaitFor(reader.attended, InTwoMinutes());
      }
      device(r).CopyPages(layer, s.my_pages, s.shard.data());
      s.copied = device(r).stream().Record();
    }
    for (int r = 0; r < ranks(); ++r) {
      RankState& s = states[static_cast<size_t>(r)];
      for (int round = 0; round < ranks(); ++round) {
        const int source = (r - round + ranks()) % ranks();
        const RankState& theirs = states[static_cast<size_t>(source)];
        device(r).stream().WaitFor(theirs.copied, InTwoMinutes());
        auto sight = s.sight[static_cast<size_t>(source)];
        device(r).Attend({.label = {.kind = OpKind::kAttend, .layer = layer, .round = round},
                          .batch = sight,
                          .q = s.q.data(),
                          .state = s.state.data(),
                          .rows = s.batch->rows(),
                          .shard = round == 0 ? nullptr : theirs.shard.data(),
                          .clear = round == 0,
                          .flags = s.flags});
      }
      s.attended = device(r).stream().Record();
      device(r).RunLayers({.finish = layer,
                           .project = layer + 1 < layers ? layer + 1 : -1,
                           .batch = s.batch,
                           .buffers = s.buffers(),
                           .state = s.state.data(),
                           .flags = s.flags});
    }
  }
}

std::vector<RawRing::Rows> RawRing::Prefill(const std::vector<Chunk>& chunks) {
  Extend(chunks);
  std::vector<RankState> states(static_cast<size_t>(ranks()));
  for (int r = 0; r < ranks(); ++r) {
    RankState& s = states[static_cast<size_t>(r)];
    s.batch = HomeBatch(r, chunks);
    std::vector<PageId> pages;
    for (const Chunk& chunk : chunks) {
      const auto& own = chunk.sequence->pages[static_cast<size_t>(r)];
      pages.insert(pages.end(), own.begin(), own.end());
    }
    s.my_pages = std::make_shared<const std::vector<PageId>>(std::move(pages));
    for (int source = 0; source < ranks(); ++source) {
      s.sight.push_back(Sight(*s.batch, source, chunks));
      if (source != r) {
        for (KvRun& run : s.sight.back()->runs) run.pages.clear();
      }
    }
    const int64_t rows = s.batch->rows();
    Device& d = device(r);
    s.x =
        d.Allocate(static_cast<size_t>(rows * model_.config().width) * sizeof(float), "x").value();
    s.angles = d.Allocate(d.AngleBytes(rows), "angles").value();
    s.q = d.Allocate(d.QueryBytes(rows), "q").value();
    s.state = d.Allocate(d.StateBytes(rows), "state").value();
    s.shard = d.Allocate(s.my_pages->size() * model_.geometry().LayerBytes(), "shard").value();
  }
  RunRing(states);
  return CollectRows(chunks, states);
}

std::vector<RawRing::Rows> RawRing::CollectRows(const std::vector<Chunk>& chunks,
                                                std::vector<RankState>& states) {
  std::vector<Rows> out(chunks.size());
  for (size_t c = 0; c < chunks.size(); ++c) {
    out[c].hidden.resize(chunks[c].tokens.size());
    out[c].next_logprob.resize(chunks[c].tokens.size() - 1);
  }
  const auto width = static_cast<size_t>(model_.config().width);
  for (int r = 0; r < ranks(); ++r) {
    const RankState& s = states[static_cast<size_t>(r)];
    std::vector<int64_t> rows;
    std::vector<Device::ScoreRow> score_rows;
    std::vector<std::pair<size_t, size_t>> owner;  // chunk, index in it
    for (int64_t row = 0; row < s.batch->rows(); ++row) {
      const auto c = static_cast<size_t>(s.batch->chunk[static_cast<size_t>(row)]);
      const auto i = static_cast<size_t>(s.batch->position[static_cast<size_t>(row)]) -
                     (chunks[c].sequence->tokens.size() - chunks[c].tokens.size());
      rows.push_back(row);
      owner.emplace_back(c, i);
      const TokenId target = i + 1 < chunks[c].tokens.size() ? chunks[c].tokens[i + 1] : 0;
      score_rows.push_back({row, target});
    }
    std::vector<float> hidden(rows.size() * width), scores(rows.size());
    device(r).HiddenRows(s.x.data(), rows, hidden.data());
    device(r).ScoreRows(s.x.data(), score_rows, scores.data());
    MustWork(device(r).stream().Record()->Await(InTwoMinutes()));
    RF_CHECK(s.flags->nonfinite_chunks == 0);
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto [c, i] = owner[k];
      out[c].hidden[i].assign(hidden.data() + k * width, hidden.data() + (k + 1) * width);
      if (i < out[c].next_logprob.size()) out[c].next_logprob[i] = scores[k];
    }
  }
  for (Rows& rows : out) {
    for (const std::vector<float>& hidden : rows.hidden) rows.logits.push_back(LogitsOf(hidden));
  }
  for (int r = 0; r < ranks(); ++r) Sync(device(r));
  return out;
}

std::vector<float> RawRing::LogitsOf(const std::vector<float>& hidden) {
  std::vector<float> out(static_cast<size_t>(model_.config().vocab));
  for (int r = 0; r < ranks(); ++r) {
    const Slice slice = SliceOf(model_.config().vocab, 1, r, ranks());
    device(r).Logits(hidden.data(), 1, slice.begin, slice.end, out.data() + slice.begin);
    MustWork(device(r).stream().Record()->Await(InTwoMinutes()));
  }
  return out;
}

void RawRing::Gather(const std::vector<DeviceBuffer>& sent, std::vector<DeviceBuffer>& gathered,
                     size_t bytes) {
  // Every rank's part is there, and nobody reads the last one any more.
  for (int r = 0; r < ranks(); ++r) {
    MustWork(device(r).stream().Record()->Await(InTwoMinutes()));
  }
  for (DeviceBuffer& to : gathered) {
    for (size_t r = 0; r < sent.size(); ++r) {
      std::memcpy(to.data() + r * bytes, sent[r].data(), bytes);
    }
  }
}

std::vector<RawRing::Rows> RawRing::Replicate(const std::vector<Chunk>& chunks) {
  using Stage = Device::TokenStage;
  Extend(chunks);
  int64_t tokens = 0;
  for (int r = 0; r < ranks(); ++r) {
    auto batch = std::make_shared<Device::TokenBatch>();
    batch->rank = r;
    batch->ranks = ranks();
    for (size_t c = 0; c < chunks.size(); ++c) {
      const RawSequence& sequence = *chunks[c].sequence;
      const auto end = static_cast<int64_t>(sequence.tokens.size());
      batch->runs.push_back({sequence.pages[static_cast<size_t>(r)], 0});
      for (int64_t p = end - static_cast<int64_t>(chunks[c].tokens.size()); p < end; ++p) {
        if (Home(p) == r) {
          const int64_t local = Local(p);
          const int page_tokens = options_.model.page_tokens;
          batch->stores.push_back(
              {batch->tokens(), 1,
               batch->runs.back().pages[static_cast<size_t>(local / page_tokens)],
               static_cast<int>(local % page_tokens)});
        }
        batch->token.push_back(sequence.tokens[static_cast<size_t>(p)]);
        batch->position.push_back(p);
        batch->run.push_back(static_cast<int>(c));
        batch->visible.push_back(Kept(r, p + 1));
      }
    }
    tokens = batch->tokens();
    device(r).BeginTokens(batch);
  }
  const size_t most = std::max({device(0).TokenBytes(Stage::kQkv, tokens, ranks()),
                                device(0).TokenBytes(Stage::kStates, tokens, ranks()),
                                device(0).TokenBytes(Stage::kOutput, tokens, ranks()),
                                device(0).TokenBytes(Stage::kFfn, tokens, ranks())});
  std::vector<DeviceBuffer> send, gathered;
  for (int r = 0; r < ranks(); ++r) {
    send.push_back(device(r).Allocate(most, "send").value());
    gathered.push_back(device(r).Allocate(most * static_cast<size_t>(ranks()), "gathered").value());
  }
  const auto gather = [&](Stage stage) {
    Gather(send, gathered, device(0).TokenBytes(stage, tokens, ranks()));
  };
  for (int layer = 0; layer < model_.config().layers; ++layer) {
    const auto all = [&](auto&& stage) {
      for (size_t r = 0; r < devices_.size(); ++r) {
        stage(*devices_[r], gathered[r].data(), send[r].data());
      }
    };
    all([&](Device& d, std::byte*, std::byte* s) { d.TokenQkv(layer, s); });
    gather(Stage::kQkv);
    all([&](Device& d, std::byte* g, std::byte* s) { d.TokenAttend(layer, g, s); });
    gather(Stage::kStates);
    all([&](Device& d, std::byte* g, std::byte* s) { d.TokenOutput(layer, g, s); });
    gather(Stage::kOutput);
    all([&](Device& d, std::byte* g, std::byte* s) { d.TokenFfn(layer, g, s); });
    gather(Stage::kFfn);
    all([&](Device& d, std::byte* g, std::byte*) { d.EndTokenLayer(layer, g); });
  }
  const auto width = static_cast<size_t>(model_.config().width);
  std::vector<float> hidden(static_cast<size_t>(tokens) * width), other(hidden.size());
  for (int r = 0; r < ranks(); ++r) {
    device(r).HiddenTokens(r == 0 ? hidden.data() : other.data());
    Sync(device(r));
    // Every rank holds the same.
    RF_CHECK(r == 0 || hidden == other);
  }
  std::vector<Rows> out(chunks.size());
  const float* at = hidden.data();
  for (size_t c = 0; c < chunks.size(); ++c) {
    for (size_t i = 0; i < chunks[c].tokens.size(); ++i, at += width) {
      out[c].hidden.emplace_back(at, at + width);
      out[c].logits.push_back(LogitsOf(out[c].hidden.back()));
    }
  }
  return out;
}

}  // namespace ringfill
