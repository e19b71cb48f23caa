// KV in position order, for equal bits on any number of ranks: windows of the sequence are put
// together from the pages of all ranks, two at a time, and attended to one after the other on one
// carried state. Cuts between calls lie at fixed multiples of kExactCutTokens from position 0, so a
// row's sums are the same whatever the ranks, chunks and neighbours.
//
// A window's buffer holds a section a rank, each with room for a header before its pages; page
// tables bring the pages into order. One rank alone attends to its pages where they are.
//
// REQUIRES: stripes hold whole pages.
#include <algorithm>

#include "engine/compute/attention/attention.h"
#include "engine/prefill/attention_strategy.h"

namespace ringfill {
namespace {

constexpr int64_t kWindowTokens = 4096;
// How many windows the host may be ahead of the device: bounds the transfers under way.
constexpr size_t kRunAheadWindows = 8;

struct Window {
  // In order: the j-th cut of each chunk in the window.
  std::vector<std::shared_ptr<AttendBatch>> steps;
  std::vector<size_t> units;    // [chunks] cuts of the chunk so far
  std::vector<int64_t> pages;   // [ranks]
  std::vector<size_t> section;  // [ranks] bytes from the buffer's start to the header
  std::shared_ptr<const std::vector<PageId>> own_pages;
};

class Ordered final : public AttentionStrategy {
 public:
  Ordered(PassContext& pass, const std::vector<int>& chunks)
      : pass_(pass),
        chunks_(chunks),
        cut_pages_(std::max<int64_t>(1, kExactCutTokens / pass.layout.page_tokens())),
        window_pages_(std::max(cut_pages_, kWindowTokens / pass.layout.page_tokens())),
        tiles_(pass.layout.QueryTiles(chunks, pass.me())) {
    size_t largest = 0;
    for (size_t i = 0; i < chunks_.size(); ++i) AddChunk(static_cast<int>(i));
    for (Window& window : windows_) largest = std::max(largest, LayOut(window));
    if (pass.ranks() == 1) return;
    for (int i = 0; i < 2; ++i) buffers_[i] = pass.rank.Reserve("ordered windows", i, largest);
  }

  void Attend(const AttentionLayer& layer) override {
    clear_ = layer.clear;
    std::vector<TransferPtr> coming = StartWindow(layer, 0);
    std::vector<EventPtr> done;
    for (size_t w = 0; w < windows_.size(); ++w) {
      // A failure shows to whoever waits for the layer.
      if (w >= kRunAheadWindows) {
        done[w - kRunAheadWindows]->Await(pass_.rank.Deadline()).IgnoreError();
      }
      std::vector<TransferPtr> next;
      if (w + 1 < windows_.size()) next = StartWindow(layer, w + 1);
      FinishWindow(layer, w, coming);
      done.push_back(pass_.transfers.Record());
      coming = std::move(next);
    }
  }

 private:
  size_t LayerBytes() const { return pass_.rank.geometry().LayerBytes(); }
  // Pages of room that a section's header takes.
  int64_t HeaderPages() const {
    return static_cast<int64_t>((sizeof(RoundHeader) + LayerBytes() - 1) / LayerBytes());
  }
  // Ranks without pages in a window send nothing, but for the first: it carries the stop masks.
  bool Sends(size_t w, int rank) const {
    return w == 0 || windows_[w].pages[static_cast<size_t>(rank)] > 0;
  }
  std::span<std::byte> Message(size_t w, int rank) const {
    if (!Sends(w, rank)) return {};
    const Window& window = windows_[w];
    const auto r = static_cast<size_t>(rank);
    return {buffers_[w % 2] + window.section[r],
            sizeof(RoundHeader) + static_cast<size_t>(window.pages[r]) * LayerBytes()};
  }
  RoundHeader Header(const AttentionLayer& layer, size_t w, int rank) const {
    return pass_.Header(layer.layer, static_cast<int>(w), rank, RoundKind::kKvShard,
                        Message(w, rank).size() - sizeof(RoundHeader));
  }

  // Cuts a chunk's KV and appends the cuts to windows.
  void AddChunk(int run) {
    const int chunk = chunks_[static_cast<size_t>(run)];
    const int64_t page_tokens = pass_.layout.page_tokens();
    const PrefillChunk& c = pass_.plan.chunks[static_cast<size_t>(chunk)];
    const int64_t pages = (c.end() + page_tokens - 1) / page_tokens;
    // Cuts stay where they are in the sequence; those that nobody sees are left out.
    const int64_t seen = pass_.layout.StartOf(chunk, c.begin()) / page_tokens;
    for (int64_t first = seen / cut_pages_ * cut_pages_; first < pages; first += cut_pages_) {
      const int64_t count = std::min(cut_pages_, pages - first);
      if (windows_.empty() || pages_in_last_ + count > window_pages_) {
        windows_.push_back({{}, std::vector<size_t>(chunks_.size(), 0), {}, {}, nullptr});
        pages_in_last_ = 0;
      }
      pages_in_last_ += count;
      Window& window = windows_.back();
      const size_t step = window.units[static_cast<size_t>(run)]++;
      if (step == window.steps.size()) {
        window.steps.push_back(std::make_shared<AttendBatch>());
        window.steps.back()->visible.resize(static_cast<size_t>(pass_.rows()));
        window.steps.back()->runs.resize(chunks_.size());
      }
      AddCut(run, first, count, *window.steps[step]);
    }
  }

  // The tiles that see pages [first, first + count) of the chunk. The run lists pages of the
  // sequence for now.
  void AddCut(int run, int64_t first, int64_t count, AttendBatch& step) {
    const int64_t page_tokens = pass_.layout.page_tokens();
    std::vector<PageId>& pages = step.runs[static_cast<size_t>(run)].pages;
    for (int64_t i = 0; i < count; ++i) pages.push_back(static_cast<PageId>(first + i));
    const RankRows& rows = pass_.layout.rows(pass_.me());
    for (QueryTile tile : tiles_) {
      if (tile.run != run) continue;
      const int64_t start =
          pass_.layout.StartOf(tile.chunk, rows.position[static_cast<size_t>(tile.row)]);
      tile.begin = std::clamp<int64_t>(start - first * page_tokens, 0, count * page_tokens);
      int64_t seen = 0;
      for (int64_t row = tile.row; row < tile.row + tile.tokens; ++row) {
        const int64_t position = rows.position[static_cast<size_t>(row)];
        seen = std::clamp<int64_t>(position + 1 - first * page_tokens, 0, count * page_tokens);
        step.visible[static_cast<size_t>(row)] = seen;
      }
      if (seen > tile.begin) step.tiles.push_back(tile);
    }
  }

  // Gives every page of the window its place; returns the buffer's size.
  size_t LayOut(Window& window) {
    const auto ranks = static_cast<size_t>(pass_.ranks());
    window.pages.assign(ranks, 0);
    ForEachPage(window, [&](int, int home, PageId&, int64_t) {
      ++window.pages[static_cast<size_t>(home)];
    });
    std::vector<int64_t> next(ranks);
    int64_t at = 0;
    for (size_t r = 0; r < ranks; ++r) {
      next[r] = at + HeaderPages();
      window.section.push_back(static_cast<size_t>(next[r]) * LayerBytes() - sizeof(RoundHeader));
      at = next[r] + window.pages[r];
    }
    auto own = std::make_shared<std::vector<PageId>>();
    const auto me = static_cast<size_t>(pass_.me());
    ForEachPage(window, [&](int chunk, int home, PageId& page, int64_t local) {
      PageId id = 0;
      if (home == pass_.me()) {
        id = pass_.plan.chunks[static_cast<size_t>(chunk)].pages[me][static_cast<size_t>(local)];
        own->push_back(id);
      }
      page = ranks == 1 ? id : static_cast<PageId>(next[static_cast<size_t>(home)]++);
    });
    window.own_pages = std::move(own);
    return static_cast<size_t>(at) * LayerBytes();
  }

  // fn(chunk, home, entry of the page table, the page's index on its home). Works once: fn replaces
  // the entries in the end.
  template <typename Fn>
  void ForEachPage(Window& window, Fn fn) {
    const int64_t page_tokens = pass_.layout.page_tokens();
    for (const std::shared_ptr<AttendBatch>& step : window.steps) {
      for (size_t run = 0; run < chunks_.size(); ++run) {
        const Placement& placement = pass_.layout.placement(chunks_[run]);
        for (PageId& page : step->runs[run].pages) {
          const int64_t position = int64_t{page} * page_tokens;
          fn(chunks_[run], placement.Home(position), page,
             placement.LocalToken(position) / page_tokens);
        }
      }
    }
  }

  std::vector<TransferPtr> StartWindow(const AttentionLayer& layer, size_t w) {
    const int n = pass_.ranks();
    std::vector<TransferPtr> coming(static_cast<size_t>(n));
    if (n == 1) return coming;
    Device& device = pass_.rank.device();
    const std::span<std::byte> own = Message(w, pass_.me());
    if (!own.empty()) {
      RoundHeader header = Header(layer, w, pass_.me());
      header.stop_mask = layer.stop_mask;
      device.WriteHeader(header, own.data());
      device.CopyPages(layer.layer, windows_[w].own_pages, own.data() + sizeof(RoundHeader));
    }
    const EventPtr written = pass_.transfers.Record();
    for (int k = 1; k < n; ++k) {
      Communicator::ExchangeArgs args;
      args.label = {OpKind::kExchange, layer.layer, static_cast<int>(w), RingStrategy::kOrdered, 0};
      args.to = pass_.Beyond(k);
      args.from = pass_.Beyond(-k);
      args.send = own;
      args.recv = Message(w, pass_.Beyond(-k));
      args.after = {written};
      if (args.send.empty() && args.recv.empty()) continue;
      coming[static_cast<size_t>(k)] =
          pass_.transfers.Exchange(std::move(args), StepTransfers::Purpose::kRound);
    }
    return coming;
  }

  void FinishWindow(const AttentionLayer& layer, size_t w, const std::vector<TransferPtr>& coming) {
    Device& device = pass_.rank.device();
    for (int k = 1; k < pass_.ranks(); ++k) {
      const int source = pass_.Beyond(-k);
      // Also when nothing came: the own section has to be free when the buffer's turn comes again.
      pass_.transfers.WaitFor(coming[static_cast<size_t>(k)]);
      const std::span<std::byte> message = Message(w, source);
      if (message.empty()) continue;
      device.CheckHeader(Header(layer, w, source), message.data(), layer.flags);
    }
    if (pass_.rows() == 0) return;
    for (const std::shared_ptr<AttendBatch>& step : windows_[w].steps) {
      if (step->tiles.empty() && !clear_) continue;
      Device::AttendArgs args;
      args.label = {OpKind::kAttend, layer.layer, static_cast<int>(w), RingStrategy::kOrdered, 0};
      args.batch = step;
      args.q = pass_.q;
      args.state = pass_.state;
      args.rows = pass_.rows();
      args.shard = pass_.ranks() == 1 ? nullptr : buffers_[w % 2];
      args.clear = std::exchange(clear_, false);
      args.only_wanted = layer.only_wanted;
      args.stopped = layer.stopped;
      args.flags = layer.flags;
      device.Attend(args);
    }
  }

  PassContext& pass_;
  const std::vector<int> chunks_;
  const int64_t cut_pages_;
  const int64_t window_pages_;
  const std::vector<QueryTile> tiles_;
  std::vector<Window> windows_;
  int64_t pages_in_last_ = 0;
  std::byte* buffers_[2] = {nullptr, nullptr};
  bool clear_ = false;
};

}  // namespace

StrategyPtr MakeOrdered(PassContext& pass, const std::vector<int>& chunks) {
  return std::make_unique<Ordered>(pass, chunks);
}

}  // namespace ringfill
