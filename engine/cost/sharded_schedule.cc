#include "engine/cost/sharded_schedule.h"

#include <utility>

namespace ringfill {
namespace {

constexpr int64_t kHeaderBytes = 64;  // sizeof(RoundHeader)

}  // namespace

ShardedSchedule::ShardedSchedule(const ModelShape& shape, const std::vector<OpCost>& costs,
                                 const ChunkCounts& counts, Way way, RingTimes& times)
    : shape_(shape),
      costs_(costs),
      counts_(counts),
      way_(way),
      times_(times),
      sent_(costs.size()) {}

std::vector<double> ShardedSchedule::Shift(int distance, std::vector<int64_t> bytes) {
  return Shift(distance, std::move(bytes), times_.Record());
}

std::vector<double> ShardedSchedule::Shift(int distance, std::vector<int64_t> bytes,
                                           const std::vector<double>& after) {
  for (size_t r = 0; r < bytes.size(); ++r) sent_[r] += bytes[r];
  return times_.Shift(distance, bytes, after);
}

void ShardedSchedule::AttendFor(int computing, int owner, int kv, bool last) {
  if (count(owner).rows == 0) return;
  const auto& counts = last ? count(owner).wanted_attend : count(owner).attend;
  const AttendCount& keys = counts[static_cast<size_t>(kv)];
  times_.Run(computing, cost(computing).overhead() +
                            cost(computing).AttendTile(keys.token_keys, keys.tile_keys));
}

int64_t ShardedSchedule::ShardBytes(int rank) const {
  return count(rank).pages * PageLayerBytes(shape_);
}

void ShardedSchedule::Begin() {
  for (int r = 0; r < n(); ++r) {
    times_.Run(r, cost(r).Embed(count(r).rows));
    times_.Run(r, cost(r).Layers(-1, count(r).rounded_rows));
  }
}

void ShardedSchedule::Products(bool last) {
  for (int r = 0; r < n(); ++r) {
    times_.Run(r, last ? cost(r).Layers(count(r).wanted_rounded_rows, -1)
                       : cost(r).Layers(count(r).rounded_rows, count(r).rounded_rows));
  }
}

void ShardedSchedule::Attend(bool last) {
  const bool dealt = way_.mode == TokenMode::kDealt;
  if (dealt) StartHoming();
  if (last && !counts_.any_wanted) {
    if (dealt) FinishHoming();
    return;
  }
  if (way_.strategy == RingStrategy::kPassQ) StartPassQ();
  if (dealt) FinishHoming();
  switch (way_.strategy) {
    case RingStrategy::kPassKv:
      return PassKv(last);
    case RingStrategy::kGatherKv:
      return GatherKv(last);
    default:
      return PassQ(last);
  }
}

void ShardedSchedule::StartHoming() {
  std::vector<std::vector<int64_t>> bytes(static_cast<size_t>(n()));  // [distance][ranks]
  for (int k = 1; k < n(); ++k) {
    for (int r = 0; r < n(); ++r) {
      const int64_t rows = count(r).rows_home[static_cast<size_t>(Beyond(r, k))];
      bytes[static_cast<size_t>(k)].push_back(rows == 0 ? 0
                                                        : kHeaderBytes + rows * KvRowBytes(shape_));
      if (rows > 0) Header(r);
    }
  }
  const std::vector<double> written = times_.Record();
  homing_.assign(static_cast<size_t>(n()), {});
  for (int k = 1; k < n(); ++k) {
    homing_[static_cast<size_t>(k)] = Shift(k, bytes[static_cast<size_t>(k)], written);
  }
}

void ShardedSchedule::FinishHoming() {
  auto store = [&](int rank, int source) {
    const int64_t rows = count(source).rows_home[static_cast<size_t>(rank)];
    if (rows == 0) return;
    if (source != rank) Header(rank);
    times_.Run(rank, cost(rank).Copy(static_cast<double>(rows * KvRowBytes(shape_))));
  };
  for (int r = 0; r < n(); ++r) {
    store(r, r);
    for (int k = 1; k < n(); ++k) {
      const int source = Beyond(r, -k);
      // An exchange that only sends is waited for as well: the outbox is written again.
      if (count(source).rows_home[static_cast<size_t>(r)] > 0 ||
          count(r).rows_home[static_cast<size_t>(Beyond(r, k))] > 0) {
        times_.Wait(r, homing_[static_cast<size_t>(k)]);
      }
      store(r, source);
    }
  }
}

void ShardedSchedule::PassKv(bool last) {
  std::vector<double> coming;
  auto start_round = [&](int round) {
    std::vector<int64_t> bytes;
    for (int r = 0; r < n(); ++r) bytes.push_back(kHeaderBytes + ShardBytes(Beyond(r, -round)));
    coming = Shift(1, std::move(bytes));
  };
  if (n() > 1) {
    for (int r = 0; r < n(); ++r) {
      Header(r);
      times_.Run(r, cost(r).Copy(static_cast<double>(ShardBytes(r))));
    }
    start_round(0);
  }
  for (int r = 0; r < n(); ++r) AttendFor(r, r, r, last);
  for (int round = 1; round < n(); ++round) {
    for (int r = 0; r < n(); ++r) {
      times_.Wait(r, coming);
      Header(r);
      if (round + 1 < n()) Header(r);
    }
    if (round + 1 < n()) start_round(round);
    for (int r = 0; r < n(); ++r) AttendFor(r, r, Beyond(r, -round), last);
  }
}

void ShardedSchedule::GatherKv(bool last) {
  std::vector<std::vector<double>> coming(static_cast<size_t>(n()));
  if (n() > 1) {
    std::vector<int64_t> bytes;
    for (int r = 0; r < n(); ++r) {
      Header(r);
      times_.Run(r, cost(r).Copy(static_cast<double>(ShardBytes(r))));
      bytes.push_back(kHeaderBytes + ShardBytes(r));
    }
    const std::vector<double> written = times_.Record();
    for (int k = 1; k < n(); ++k) coming[static_cast<size_t>(k)] = Shift(k, bytes, written);
  }
  for (int r = 0; r < n(); ++r) AttendFor(r, r, r, last);
  for (int k = 1; k < n(); ++k) {
    for (int r = 0; r < n(); ++r) {
      times_.Wait(r, coming[static_cast<size_t>(k)]);
      Header(r);
      AttendFor(r, r, Beyond(r, -k), last);
    }
  }
}

void ShardedSchedule::StartPassQ() {
  if (n() == 1) return;
  std::vector<int64_t> bytes;
  for (int r = 0; r < n(); ++r) {
    Header(r);
    bytes.push_back(kHeaderBytes + QueryBytes(shape_, count(r).rows));
  }
  queries_coming_ = Shift(1, std::move(bytes));
}

void ShardedSchedule::PassQ(bool last) {
  for (int r = 0; r < n(); ++r) AttendFor(r, r, r, last);
  std::vector<double> returned;
  for (int round = 1; round < n(); ++round) {
    std::vector<int64_t> query_bytes;
    std::vector<int64_t> state_bytes;
    for (int r = 0; r < n(); ++r) {
      const int64_t rows = count(Beyond(r, -round)).rows;
      query_bytes.push_back(kHeaderBytes + QueryBytes(shape_, rows));
      state_bytes.push_back(kHeaderBytes + StateBytes(shape_, rows));
      times_.Wait(r, queries_coming_);
      Header(r);
      if (round + 1 < n()) Header(r);
    }
    if (round + 1 < n()) queries_coming_ = Shift(1, std::move(query_bytes));
    for (int r = 0; r < n(); ++r) {
      AttendFor(r, Beyond(r, -round), r, last);
      Header(r);
    }
    if (round > 1) MergeReturned(returned);
    returned = Shift(-round, std::move(state_bytes));
  }
  if (n() > 1) MergeReturned(returned);
}

void ShardedSchedule::MergeReturned(const std::vector<double>& returned) {
  for (int r = 0; r < n(); ++r) {
    times_.Wait(r, returned);
    Header(r);
    if (count(r).rows == 0) continue;
    times_.Run(r, cost(r).Copy(static_cast<double>(StateBytes(shape_, count(r).rows))));
  }
}

}  // namespace ringfill
