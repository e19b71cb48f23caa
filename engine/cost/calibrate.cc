#include "engine/cost/calibrate.h"

#include <algorithm>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/cost/op_cost.h"

namespace ringfill {
namespace {

constexpr int kRepetitions = 3;
constexpr int kManyRepetitions = 9;  // of what takes microseconds
// What one measurement may take, repetitions not counted.
constexpr double kBudget_s = 0.1;

constexpr int kOverheadOps = 64;
constexpr int64_t kCopyBytes = int64_t{8} << 20;
constexpr int64_t kFewRows = 8;
constexpr int64_t kLeastManyRows = 64;
constexpr int64_t kMostManyRows = 512;
constexpr int kManyRowsLayers = 3;
constexpr int kTilesAtOnce = 4;  // so that every thread has one
constexpr int64_t kLargeTileKeys = 512;
constexpr int64_t kSmallTileKeys = 4096;
constexpr int64_t kShardBytes = int64_t{32} << 20;
constexpr int64_t kFewTokens = 1;
constexpr int64_t kManyTokens = 16;
constexpr int kTokenLayers = 8;
constexpr size_t kSmallMessage = 64;
constexpr size_t kLargeMessage = size_t{1} << 20;
constexpr size_t kLargeGather = size_t{1} << 18;

// Of a time that two rates share, each has at least this much: a difference of two times may be
// lost in noise.
constexpr double kLeastShare = 0.05;
constexpr double kHighestRate = 1e18;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// amount / seconds, for seconds that noise may have made zero or less.
double Rate(double amount, double seconds) {
  return seconds > amount / kHighestRate ? amount / seconds : kHighestRate;
}

class Calibration {
 public:
  Calibration(Device& device, Communicator& comm, const CalibrateOptions& options)
      : device_(device),
        comm_(comm),
        options_(options),
        shape_(options.shape),
        flags_(std::make_shared<LayerFlags>()) {}

  absl::StatusOr<Figures> Run() {
    RF_CHECK(device_.pages() > 0);
    mine_.large_tile.rows =
        std::max<int64_t>(1, options_.query_tile_rows / shape_.group()) * shape_.group();
    mine_.small_tile.rows = shape_.group();
    links_.resize(static_cast<size_t>(comm_.size()));
    for (const auto measure :
         {&Calibration::MeasureOverhead, &Calibration::MeasureCopies, &Calibration::MeasureProducts,
          &Calibration::MeasureAttention, &Calibration::MeasureTokens, &Calibration::MeasureLinks,
          &Calibration::MeasureGather}) {
      RF_RETURN_IF_ERROR(comm_.Barrier(options_.deadline));
      RF_RETURN_IF_ERROR((this->*measure)());
    }
    (void)device_.TakeCounters();
    (void)device_.stream().TakeTimes();
    return Share();
  }

 private:
  // Runs `work`, which queues something, and waits for it.
  template <typename Work>
  absl::StatusOr<double> Time(Work work) {
    const Instant begin = options_.clock->Now();
    RF_RETURN_IF_ERROR(work());
    RF_RETURN_IF_ERROR(Synchronize());
    return Seconds(options_.clock->Now() - begin);
  }
  template <typename Work>
  absl::StatusOr<double> TimeOps(int repetitions, Work work) {
    std::vector<double> seconds;
    for (int i = 0; i < repetitions; ++i) {
      RF_ASSIGN_OR_RETURN(const double s, Time([&] {
                            work();
                            return absl::OkStatus();
                          }));
      seconds.push_back(s);
    }
    return Median(std::move(seconds));
  }

  // After a failure nothing may use the buffers that are freed on the way out.
  void GiveUp(const absl::Status& status) {
    comm_.Abort(status);
    device_.Abort(status);
  }
  absl::Status Synchronize() {
    const absl::Status status = device_.stream().Synchronize(options_.deadline);
    if (status.ok()) return status;
    GiveUp(status);
    (void)device_.stream().Record()->Await(Instant::max());
    return status;
  }
  absl::Status Finish(const TransferPtr& transfer) {
    const absl::Status status = transfer->Await(options_.deadline);
    if (status.ok()) return status;
    GiveUp(status);
    (void)transfer->Await(Instant::max());
    return status;
  }
  // Of buffers of the device.
  absl::Status Gather(std::span<const std::byte> send, std::span<std::byte> recv) {
    Communicator::AllGatherArgs args;
    args.label.kind = OpKind::kAllGather;
    args.label.bytes = static_cast<int64_t>(send.size());
    args.send = send;
    args.recv = recv;
    args.after = {device_.stream().Record()};
    args.deadline = options_.deadline;
    return Finish(comm_.StartAllGather(std::move(args)));
  }
  // Of a few bytes of the host.
  absl::Status ShareBytes(std::span<const std::byte> send, std::span<std::byte> recv) {
    const absl::Status status = comm_.GatherOnHost(send, recv, options_.deadline);
    if (!status.ok()) GiveUp(status);
    return status;
  }

  absl::Status MeasureOverhead();
  absl::Status MeasureCopies();
  absl::Status MeasureProducts();
  absl::Status MeasureAttention();
  absl::Status MeasureTokens();
  absl::Status MeasureLinks();
  absl::Status MeasureGather();
  absl::StatusOr<Figures> Share();

  absl::StatusOr<std::vector<double>> LayerSeconds(int64_t rows, int steps);
  absl::StatusOr<double> TileSeconds(int64_t tile_tokens, int64_t keys);
  absl::StatusOr<double> TokenLayerSeconds(int64_t tokens, int layers);
  absl::StatusOr<double> ShiftSeconds(int distance, size_t bytes, int repetitions);
  absl::StatusOr<double> GatherSeconds(size_t bytes, int repetitions);
  // The largest of all ranks' values.
  absl::StatusOr<double> Agree(double value);

  Device& device_;
  Communicator& comm_;
  const CalibrateOptions options_;
  const ModelShape shape_;
  const std::shared_ptr<LayerFlags> flags_;
  DeviceFigures mine_;
  std::vector<LinkFigures> links_;  // [ranks] from this one
  LinkFigures gather_;
};

absl::Status Calibration::MeasureOverhead() {
  RF_ASSIGN_OR_RETURN(const DeviceBuffer buffer,
                      device_.Allocate(sizeof(RoundHeader), "calibration"));
  RF_ASSIGN_OR_RETURN(const double seconds, TimeOps(kManyRepetitions, [&] {
                        for (int i = 0; i < kOverheadOps; ++i) {
                          device_.WriteHeader({}, buffer.data());
                        }
                      }));
  mine_.op_overhead_s = seconds / kOverheadOps;
  return absl::OkStatus();
}

absl::Status Calibration::MeasureCopies() {
  const int64_t page_bytes = PageLayerBytes(shape_);
  const auto count = std::clamp<int64_t>(kCopyBytes / page_bytes, 1, device_.pages());
  auto pages = std::make_shared<std::vector<PageId>>();
  for (int64_t page = 0; page < count; ++page) pages->push_back(static_cast<PageId>(page));
  const int64_t bytes = count * page_bytes;
  RF_ASSIGN_OR_RETURN(const DeviceBuffer shard,
                      device_.Allocate(static_cast<size_t>(bytes), "calibration"));
  RF_ASSIGN_OR_RETURN(const double seconds,
                      TimeOps(kRepetitions, [&] { device_.CopyPages(0, pages, shard.data()); }));
  mine_.copy_bytes_per_s = Rate(static_cast<double>(bytes), seconds - mine_.op_overhead_s);
  return absl::OkStatus();
}

std::shared_ptr<const RowBatch> PlainRows(int64_t rows, int64_t tile_rows) {
  auto batch = std::make_shared<RowBatch>();
  for (int64_t row = 0; row < rows; ++row) {
    batch->token.push_back(0);
    batch->position.push_back(row);
    batch->chunk.push_back(0);
  }
  for (int64_t row = 0; row < rows; row += tile_rows) {
    batch->tiles.push_back({row, std::min(tile_rows, rows - row), 0, 0, 0, 0, 1, false});
  }
  return batch;
}

// Seconds for the second half of a layer and the first of the next, for `steps` layers from the
// first on. Every rank takes the same steps, because they may share expanded weights.
absl::StatusOr<std::vector<double>> Calibration::LayerSeconds(int64_t rows, int steps) {
  RF_ASSIGN_OR_RETURN(
      const DeviceBuffer x,
      device_.Allocate(static_cast<size_t>(rows * shape_.width) * sizeof(float), "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer angles,
                      device_.Allocate(device_.AngleBytes(rows), "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer q,
                      device_.Allocate(device_.QueryBytes(rows), "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer state,
                      device_.Allocate(device_.StateBytes(rows), "calibration"));
  Device::LayersArgs args;
  args.batch = PlainRows(rows, options_.product_tile_rows);
  args.buffers = {x.data(), angles.data(), q.data(), nullptr};
  args.state = state.data();
  args.flags = flags_;
  // States that saw nothing.
  Device::AttendArgs nothing;
  nothing.label.kind = OpKind::kAttend;
  nothing.batch = std::make_shared<const AttendBatch>();
  nothing.q = q.data();
  nothing.state = state.data();
  nothing.rows = rows;
  nothing.shard = state.data();
  nothing.clear = true;
  nothing.flags = flags_;
  device_.EmbedRows(args.batch, args.buffers);
  device_.Attend(nothing);
  auto run = [&](int finish, int project) {
    return Time([&] {
      args.finish = finish;
      args.project = project;
      device_.RunLayers(args);
      return absl::OkStatus();
    });
  };
  RF_RETURN_IF_ERROR(Synchronize());
  RF_ASSIGN_OR_RETURN(double first, run(-1, 0));
  std::vector<double> seconds;
  if (shape_.layers == 1) {
    RF_ASSIGN_OR_RETURN(const double second, run(0, -1));
    seconds.push_back(first + second - mine_.op_overhead_s);
    return seconds;
  }
  for (int layer = 1; layer <= steps; ++layer) {
    RF_ASSIGN_OR_RETURN(const double s, run(layer - 1, layer));
    seconds.push_back(s);
  }
  device_.AbandonLayers(steps);
  RF_RETURN_IF_ERROR(Synchronize());
  return seconds;
}

absl::Status Calibration::MeasureProducts() {
  const int most_steps = std::max(1, shape_.layers - 1);
  // Expands what stays expanded, and shows how long a layer takes.
  RF_ASSIGN_OR_RETURN(const std::vector<double> cold, LayerSeconds(kFewRows, 1));
  RF_ASSIGN_OR_RETURN(const double first, Agree(cold.front()));
  const int steps =
      std::clamp(static_cast<int>(2 * kBudget_s / std::max(first, 1e-9)), 1, most_steps);
  if (steps > 1) RF_RETURN_IF_ERROR(LayerSeconds(kFewRows, steps).status());
  RF_ASSIGN_OR_RETURN(const std::vector<double> few, LayerSeconds(kFewRows, steps));
  const int compared = std::min(steps, kManyRowsLayers);
  // As many rows as the budget allows, by a first look at the least.
  RF_ASSIGN_OR_RETURN(const std::vector<double> look, LayerSeconds(kLeastManyRows, 1));
  RF_ASSIGN_OR_RETURN(const double least, Agree(look.front()));
  int64_t many_rows = kLeastManyRows;
  while (many_rows < kMostManyRows &&
         least * static_cast<double>(2 * many_rows / kLeastManyRows) < kBudget_s) {
    many_rows *= 2;
  }
  RF_ASSIGN_OR_RETURN(const std::vector<double> many, LayerSeconds(many_rows, compared));
  const auto weights = static_cast<double>(shape_.project_weights() + shape_.finish_weights());
  // Layer by layer, so that one disturbed step does not count.
  std::vector<double> more;
  for (size_t i = 0; i < many.size(); ++i) more.push_back(many[i] - few[i]);
  const double a_row = std::max(Median(more) / static_cast<double>(many_rows - kFewRows),
                                kLeastShare * Median(many) / static_cast<double>(many_rows));
  mine_.product_flops_per_s = Rate(2 * weights, a_row);
  // Over all layers measured: some stay expanded, others do not.
  mine_.expand_weights_per_s = Rate(
      weights, std::max(Mean(few) - mine_.op_overhead_s - static_cast<double>(kFewRows) * a_row,
                        kLeastShare * Mean(few)));
  return absl::OkStatus();
}

// Seconds of kTilesAtOnce tiles, each against keys of its own.
absl::StatusOr<double> Calibration::TileSeconds(int64_t tile_tokens, int64_t keys) {
  const int64_t rows = kTilesAtOnce * tile_tokens;
  const int64_t pages = keys / shape_.page_tokens;
  const auto run_bytes = static_cast<size_t>(pages * PageLayerBytes(shape_));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer shard,
                      device_.Allocate(kTilesAtOnce * run_bytes, "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer q,
                      device_.Allocate(device_.QueryBytes(rows), "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer state,
                      device_.Allocate(device_.StateBytes(rows), "calibration"));
  auto batch = std::make_shared<AttendBatch>();
  for (int tile = 0; tile < kTilesAtOnce; ++tile) {
    batch->tiles.push_back({0, tile * tile_tokens, static_cast<int>(tile_tokens), tile, false});
    batch->runs.push_back({{}, static_cast<size_t>(tile) * run_bytes});
    // Memory that was never written would be read as one page of zeros.
    device_.CopyPages(0,
                      std::make_shared<std::vector<PageId>>(static_cast<size_t>(pages), PageId{0}),
                      shard.data() + static_cast<size_t>(tile) * run_bytes);
  }
  batch->visible.assign(static_cast<size_t>(rows), keys);
  Device::AttendArgs args;
  args.label.kind = OpKind::kAttend;
  args.batch = std::move(batch);
  args.q = q.data();
  args.state = state.data();
  args.rows = rows;
  args.shard = shard.data();
  args.clear = true;
  args.flags = flags_;
  RF_RETURN_IF_ERROR(Synchronize());
  return TimeOps(kRepetitions, [&] { device_.Attend(args); });
}

absl::Status Calibration::MeasureAttention() {
  const int64_t most_keys =
      std::max(shape_.page_tokens, kShardBytes / (kTilesAtOnce * KvRowBytes(shape_)) /
                                       shape_.page_tokens * shape_.page_tokens);
  auto measure = [&](DeviceFigures::Attention& tile, int64_t keys) -> absl::Status {
    keys = std::min(keys, most_keys);
    const int64_t tokens = tile.rows / shape_.group();
    RF_ASSIGN_OR_RETURN(const double seconds, TileSeconds(tokens, keys));
    const double flops = 4.0 * static_cast<double>(shape_.head_dim * shape_.kv_heads) *
                         static_cast<double>(kTilesAtOnce * tile.rows * keys);
    tile.flops_per_s = Rate(flops, seconds - mine_.op_overhead_s);
    return absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(measure(mine_.large_tile, kLargeTileKeys));
  return measure(mine_.small_tile, kSmallTileKeys);
}

// Seconds a layer of replicated tokens that see nothing; the stages feed each other.
absl::StatusOr<double> Calibration::TokenLayerSeconds(int64_t tokens, int layers) {
  const int n = comm_.size();
  using Stage = Device::TokenStage;
  size_t bytes = 0;
  for (const Stage stage : {Stage::kQkv, Stage::kStates, Stage::kOutput, Stage::kFfn}) {
    bytes = std::max(bytes, device_.TokenBytes(stage, tokens, n));
  }
  RF_ASSIGN_OR_RETURN(const DeviceBuffer send, device_.Allocate(bytes, "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer gathered,
                      device_.Allocate(bytes * static_cast<size_t>(n), "calibration"));
  auto batch = std::make_shared<Device::TokenBatch>();
  batch->rank = comm_.rank();
  batch->ranks = n;
  for (int64_t t = 0; t < tokens; ++t) {
    batch->token.push_back(0);
    batch->position.push_back(t);
    batch->run.push_back(0);
    batch->visible.push_back(0);
  }
  batch->runs.resize(1);
  device_.BeginTokens(std::move(batch));
  RF_RETURN_IF_ERROR(Synchronize());
  std::vector<double> seconds;
  for (int layer = 0; layer < layers; ++layer) {
    RF_ASSIGN_OR_RETURN(const double s, TimeOps(1, [&] {
                          device_.TokenQkv(layer, send.data());
                          device_.TokenAttend(layer, gathered.data(), send.data());
                          device_.TokenOutput(layer, gathered.data(), send.data());
                          device_.TokenFfn(layer, gathered.data(), send.data());
                          device_.EndTokenLayer(layer, gathered.data());
                        }));
    seconds.push_back(s);
  }
  return Median(std::move(seconds));
}

absl::Status Calibration::MeasureTokens() {
  const int n = comm_.size();
  const int layers = std::min(shape_.layers, kTokenLayers);
  // What OpCost adds to the products.
  auto products = [&](double seconds, int64_t tokens) {
    const double copied = static_cast<double>(StateBytes(shape_, tokens) * (1 + n) +
                                              TokenFfnBytes(shape_, tokens) * n);
    return seconds - 5 * mine_.op_overhead_s - copied / mine_.copy_bytes_per_s;
  };
  RF_ASSIGN_OR_RETURN(const double cold, TokenLayerSeconds(kFewTokens, 1));
  const int few_layers = std::clamp(static_cast<int>(kBudget_s / std::max(cold, 1e-9)), 1, layers);
  RF_ASSIGN_OR_RETURN(const double few_total, TokenLayerSeconds(kFewTokens, few_layers));
  const double few = products(few_total, kFewTokens);
  // Many tokens may take as much longer as there are more.
  const int many_layers = std::clamp(
      static_cast<int>(2 * kBudget_s / std::max(few_total * kManyTokens, 1e-9)), 1, layers);
  RF_ASSIGN_OR_RETURN(const double many_total, TokenLayerSeconds(kManyTokens, many_layers));
  const double many = products(many_total, kManyTokens);
  const double weights =
      static_cast<double>(shape_.project_weights() + shape_.finish_weights()) / n;
  const double a_token = std::max((many - few) / static_cast<double>(kManyTokens - kFewTokens),
                                  kLeastShare * many_total / static_cast<double>(kManyTokens));
  mine_.token_flops_per_s = Rate(2 * weights, a_token);
  mine_.token_bytes_per_s =
      Rate(weights * shape_.stored_weight_bytes,
           std::max(few - static_cast<double>(kFewTokens) * a_token, kLeastShare * few_total));
  return absl::OkStatus();
}

absl::StatusOr<double> Calibration::ShiftSeconds(int distance, size_t bytes, int repetitions) {
  const int n = comm_.size();
  RF_ASSIGN_OR_RETURN(const DeviceBuffer send, device_.Allocate(bytes, "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer recv, device_.Allocate(bytes, "calibration"));
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    // Or a slow link would slow down the rest by the exchanges before.
    RF_RETURN_IF_ERROR(comm_.Barrier(options_.deadline));
    RF_ASSIGN_OR_RETURN(const double s, Time([&] {
                          Communicator::ExchangeArgs args;
                          args.label.kind = OpKind::kExchange;
                          args.label.bytes = static_cast<int64_t>(bytes);
                          args.to = (comm_.rank() + distance) % n;
                          args.from = (comm_.rank() - distance + n) % n;
                          args.send = {send.data(), bytes};
                          args.recv = {recv.data(), bytes};
                          args.after = {device_.stream().Record()};
                          args.deadline = options_.deadline;
                          return Finish(comm_.StartExchange(std::move(args)));
                        }));
    seconds.push_back(s);
  }
  return Median(std::move(seconds));
}

absl::StatusOr<double> Calibration::GatherSeconds(size_t bytes, int repetitions) {
  const size_t all = bytes * static_cast<size_t>(comm_.size());
  RF_ASSIGN_OR_RETURN(const DeviceBuffer send, device_.Allocate(bytes, "calibration"));
  RF_ASSIGN_OR_RETURN(const DeviceBuffer recv, device_.Allocate(all, "calibration"));
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    RF_ASSIGN_OR_RETURN(const double s, Time([&] {
                          return Gather({send.data(), bytes}, {recv.data(), all});
                        }));
    seconds.push_back(s);
  }
  return Median(std::move(seconds));
}

// Latency and bandwidth from the times of a small and a large message.
LinkFigures Solve(double small_s, double small_bytes, double large_s, double large_bytes) {
  LinkFigures link;
  link.bytes_per_s =
      Rate(large_bytes - small_bytes, std::max(large_s - small_s, kLeastShare * large_s));
  link.latency_s = std::max(0.0, small_s - small_bytes / link.bytes_per_s);
  return link;
}

absl::Status Calibration::MeasureLinks() {
  const int n = comm_.size();
  for (int distance = 1; distance < n; ++distance) {
    RF_ASSIGN_OR_RETURN(const double small,
                        ShiftSeconds(distance, kSmallMessage, kManyRepetitions));
    RF_ASSIGN_OR_RETURN(const double large, ShiftSeconds(distance, kLargeMessage, kRepetitions));
    links_[static_cast<size_t>((comm_.rank() + distance) % n)] =
        Solve(small, kSmallMessage, large, kLargeMessage);
  }
  return absl::OkStatus();
}

absl::Status Calibration::MeasureGather() {
  const int n = comm_.size();
  if (n == 1) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const double small, GatherSeconds(kSmallMessage, kManyRepetitions));
  RF_ASSIGN_OR_RETURN(const double large, GatherSeconds(kLargeGather, kRepetitions));
  const double received = n - 1;
  gather_ = Solve(small, received * kSmallMessage, large, received * kLargeGather);
  return absl::OkStatus();
}

absl::StatusOr<double> Calibration::Agree(double value) {
  std::vector<double> all(static_cast<size_t>(comm_.size()));
  RF_RETURN_IF_ERROR(
      ShareBytes(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all))));
  return *std::max_element(all.begin(), all.end());
}

absl::StatusOr<Figures> Calibration::Share() {
  const auto n = static_cast<size_t>(comm_.size());
  struct Part {
    DeviceFigures device;
    LinkFigures gather;
  };
  static_assert(std::is_trivially_copyable_v<Part>);
  const Part part{mine_, gather_};
  std::vector<Part> parts(n);
  std::vector<LinkFigures> links(n * n);
  RF_RETURN_IF_ERROR(
      ShareBytes(std::as_bytes(std::span(&part, 1)), std::as_writable_bytes(std::span(parts))));
  RF_RETURN_IF_ERROR(
      ShareBytes(std::as_bytes(std::span(links_)), std::as_writable_bytes(std::span(links))));
  Figures figures;
  figures.links = std::move(links);
  figures.gather = parts.front().gather;
  for (const Part& other : parts) {
    figures.devices.push_back(other.device);
    figures.gather.latency_s = std::max(figures.gather.latency_s, other.gather.latency_s);
    figures.gather.bytes_per_s = std::min(figures.gather.bytes_per_s, other.gather.bytes_per_s);
  }
  return figures;
}

}  // namespace

absl::StatusOr<Figures> MeasureRank(Device& device, Communicator& comm,
                                    const CalibrateOptions& options) {
  absl::StatusOr<Figures> figures = Calibration(device, comm, options).Run();
  // Also where nothing was under way, such as memory that is not there: the others wait.
  if (!figures.ok()) {
    comm.Abort(figures.status());
    device.Abort(figures.status());
  }
  return figures;
}

}  // namespace ringfill
