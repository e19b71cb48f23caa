#include "engine/prefill/kv_shards.h"

#include <algorithm>
#include <numeric>

namespace ringfill {

KvShards::KvShards(PassContext& pass, const std::vector<int>& chunks, RingStrategy strategy)
    : pass_(pass), strategy_(strategy) {
  auto own_pages = std::make_shared<std::vector<PageId>>();
  for (int rank = 0; rank < pass.ranks(); ++rank) {
    std::vector<KvRun> runs;
    size_t bytes = 0;
    for (const int chunk : chunks) {
      runs.push_back({{}, bytes});
      bytes += static_cast<size_t>(pass.layout.PagesOn(chunk, rank).count) *
               pass.rank.geometry().LayerBytes();
    }
    bytes_.push_back(bytes);
    if (rank == pass.me()) {
      runs = pass.OwnRuns(chunks);
      for (const KvRun& run : runs) {
        own_pages->insert(own_pages->end(), run.pages.begin(), run.pages.end());
      }
    }
    batches_.push_back(std::make_shared<const AttendBatch>(
        pass.layout.MakeAttend(chunks, pass.me(), rank, std::move(runs))));
  }
  own_pages_ = std::move(own_pages);
}

size_t KvShards::LargestMessage() const {
  return sizeof(RoundHeader) + *std::max_element(bytes_.begin(), bytes_.end());
}

size_t KvShards::AllMessages() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), bytes_.size() * sizeof(RoundHeader));
}

void KvShards::WriteOwn(const AttentionLayer& layer, std::byte* buffer) {
  RoundHeader header =
      pass_.Header(layer.layer, 0, pass_.me(), RoundKind::kKvShard, bytes(pass_.me()));
  header.stop_mask = layer.stop_mask;
  pass_.rank.device().WriteHeader(header, buffer);
  pass_.rank.device().CopyPages(layer.layer, own_pages_, buffer + sizeof(RoundHeader));
}

void KvShards::AttendTo(const AttentionLayer& layer, int round, int source,
                        const std::byte* buffer) {
  Attend(layer, round, source, buffer + sizeof(RoundHeader));
}

void KvShards::AttendOwn(const AttentionLayer& layer) { Attend(layer, 0, pass_.me(), nullptr); }

void KvShards::Attend(const AttentionLayer& layer, int round, int source, const std::byte* shard) {
  if (pass_.rows() == 0) return;
  Device::AttendArgs args;
  args.label = {OpKind::kAttend, layer.layer, round, strategy_, 0};
  args.batch = batches_[static_cast<size_t>(source)];
  args.q = pass_.q;
  args.state = pass_.state;
  args.rows = pass_.rows();
  args.shard = shard;
  args.clear = layer.clear && shard == nullptr;
  args.only_wanted = layer.only_wanted;
  args.stopped = layer.stopped;
  args.flags = layer.flags;
  pass_.rank.device().Attend(args);
}

}  // namespace ringfill
