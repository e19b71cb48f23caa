#include "engine/replay/replay.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "engine/engine_options.h"
#include "engine/model/digest.h"
#include "engine/replay/replay_ring.h"
#include "engine/schedule/plan_check.h"

namespace ringfill {
namespace {

absl::Status Differs(std::string_view what, const std::string& log, const std::string& here) {
  return absl::FailedPreconditionError(absl::StrCat(absl::string_view(what.data(), what.size()),
                                                    ": the log has ", log, ", here is ", here));
}

std::string Name(std::string_view name) { return std::string(name); }

absl::Status CheckGeometry(const PlanLogHeader& header, const Model& model) {
  CpuModelOptions options;
  options.dtype = header.dtype;
  options.kv_dtype = header.kv_dtype;
  options.page_tokens = header.geometry.page_tokens;
  if (options.page_tokens < 16 || options.page_tokens > 256 || options.page_tokens % 16 != 0) {
    return absl::DataLossError(absl::StrCat("the log's pages have ", options.page_tokens,
                                            " tokens; they are a multiple of 16 up to 256"));
  }
  const KvGeometry here = KvGeometryOf(model.config(), options);
  const KvGeometry& log = header.geometry;
  const std::pair<const char*, std::pair<size_t, size_t>> fields[] = {
      {"KV layers", {log.layers, here.layers}},
      {"KV heads", {log.kv_heads, here.kv_heads}},
      {"bytes of a KV block", {log.block_bytes, here.block_bytes}},
      {"vocabulary", {header.vocab, model.config().vocab}}};
  for (const auto& [what, values] : fields) {
    if (values.first != values.second) {
      return Differs(what, absl::StrCat(values.first), absl::StrCat(values.second));
    }
  }
  const double pool = static_cast<double>(here.PageBytes()) *
                      static_cast<double>(header.pages_per_rank) * header.ranks;
  const auto machine = static_cast<double>(UsableMemory());
  if (pool > machine || header.pages_per_rank > std::numeric_limits<PageId>::max()) {
    return Differs("memory", absl::StrCat(pool, " bytes of KV pages"),
                   absl::StrCat("a machine of ", machine, " bytes"));
  }
  return absl::OkStatus();
}

// Of the first rank that failed.
absl::Status FailureOf(std::span<const RankStepResult> results) {
  for (const RankStepResult& result : results) RF_RETURN_IF_ERROR(result.status);
  return absl::OkStatus();
}

class Replayer {
 public:
  Replayer(PlanLogReader& log, std::shared_ptr<const Model> model, const ReplayOptions& options)
      : log_(log),
        options_(options),
        ring_(std::move(model), log.header(), options.threads > 0 ? options.threads : UsableCores(),
              options.min_round_timeout) {
    const DType type = log.header().dtype;
    report_.tolerance = options.tolerance.value_or(
        type == DType::kF32 && log.header().kv_dtype == DType::kF32 ? kReplayToleranceF32
                                                                    : kReplayToleranceBf16);
  }

  ReplayReport Run() {
    report_.broken = Follow();
    return std::move(report_);
  }

 private:
  absl::Status Follow();
  absl::Status Take(PlanRecord record);
  absl::Status Take(OutcomeRecord record);
  absl::Status Take(RingRecord record);
  absl::Status Take(EndRecord record);
  absl::Status Check(const StepPlan& plan) const;
  std::vector<RankStepResult> Execute(uint64_t stopped);
  void Note(std::string what);

  PlanLogReader& log_;
  const ReplayOptions& options_;
  ReplayRing ring_;
  ReplayReport report_;
  std::optional<StepPlan> plan_;  // whose outcome is to follow
  uint64_t epoch_ = 1;
  uint64_t last_step_ = 0;
};

absl::Status Replayer::Follow() {
  while (report_.end.empty()) {
    RF_ASSIGN_OR_RETURN(std::optional<LogRecord> record, log_.Next());
    if (!record.has_value()) {
      report_.end =
          absl::StrCat(log_.torn() ? "it is torn off in a record" : "without an end record",
                       ": the daemon died, could not write, or still writes");
      break;
    }
    const int64_t at = log_.offset();
    const absl::Status taken = std::visit([this](auto& r) { return Take(std::move(r)); }, *record);
    if (!taken.ok()) {
      return absl::Status(taken.code(), absl::StrCat("the record that ends at byte ", at, ": ",
                                                     std::string(taken.message())));
    }
    if (report_.first.has_value() && !options_.keep_going) return absl::OkStatus();
  }
  if (!plan_.has_value()) return absl::OkStatus();
  // The daemon may have died of it, so it is run.
  const absl::Status failed = FailureOf(Execute(0));
  absl::StrAppend(&report_.end, "; step ", plan_->step,
                  ", the last, has no results in the log and ",
                  failed.ok() ? "ran here without comparison"
                              : absl::StrCat("fails here: ", failed.ToString()));
  return absl::OkStatus();
}

absl::Status Replayer::Check(const StepPlan& plan) const {
  if (plan.epoch != epoch_) {
    return absl::DataLossError(absl::StrCat("plan: epoch is ", plan.epoch, " in epoch ", epoch_));
  }
  if (plan.step <= last_step_) {
    return absl::DataLossError(absl::StrCat("plan: step ", plan.step, " after ", last_step_));
  }
  return CheckPlan(plan, {.ranks = ring_.ranks(),
                          .page_tokens = log_.header().geometry.page_tokens,
                          .pages_per_rank = log_.header().pages_per_rank,
                          .vocab = log_.header().vocab,
                          .max_positions = log_.header().max_positions});
}

absl::Status Replayer::Take(PlanRecord record) {
  if (plan_.has_value()) return absl::DataLossError("a plan follows a plan without results");
  RF_RETURN_IF_ERROR(Check(record.plan));
  last_step_ = record.plan.step;
  plan_ = std::move(record.plan);
  return absl::OkStatus();
}

std::vector<RankStepResult> Replayer::Execute(uint64_t stopped) {
  const StepControl control{.should_stop = [stopped](int c) { return ((stopped >> c) & 1) != 0; },
                            .on_layer = {}};
  return ring_.Run(*plan_, control);
}

absl::Status Replayer::Take(OutcomeRecord record) {
  if (!plan_.has_value() || plan_->step != record.step) {
    return absl::DataLossError(absl::StrCat("results of step ", record.step, " follow no plan"));
  }
  if (record.failed) {
    // What it wrote before it failed was computed again by steps that follow.
    ++report_.failed_steps;
    plan_.reset();
    return absl::OkStatus();
  }
  const std::vector<RankStepResult> results = Execute(record.stopped);
  ++report_.steps;
  if (const absl::Status failed = FailureOf(results); !failed.ok()) {
    Note(absl::StrCat("it fails here: ", failed.ToString()));
    // Nothing can run on a broken ring.
    return absl::AbortedError("the steps that follow cannot run");
  }
  const OutcomeRecord here =
      OutcomeOf(StepRows::Of(*plan_), results, log_.header().vocab, record.stopped);
  if (auto what = CompareOutcomes(*plan_, record, here, {log_.header().strict, report_.tolerance},
                                  report_.agreement)) {
    Note(*std::move(what));
  }
  plan_.reset();
  if (options_.on_step) options_.on_step(report_.steps);
  return absl::OkStatus();
}

void Replayer::Note(std::string what) {
  ++report_.different_steps;
  if (report_.first.has_value()) return;
  report_.first = ReplayDifference{plan_->epoch, plan_->step, std::move(what)};
}

absl::Status Replayer::Take(RingRecord record) {
  if (plan_.has_value()) return absl::DataLossError("a ring is formed while a step runs");
  // Each rank has a seat that it was configured with.
  const auto seats = static_cast<size_t>(log_.header().ranks);
  if (record.epoch <= epoch_ || record.from.empty() || record.from.size() > seats) {
    return absl::DataLossError(absl::StrCat("ring: epoch ", record.epoch, " after ", epoch_,
                                            ", with ", record.from.size(), " ranks of ", seats));
  }
  std::vector<int32_t> kept;
  for (const int32_t was : record.from) {
    if (was < -1 || was >= ring_.ranks()) {
      return absl::DataLossError(
          absl::StrCat("ring: names rank ", was, " of ", ring_.ranks(), " ranks"));
    }
    if (was >= 0) kept.push_back(was);
  }
  std::sort(kept.begin(), kept.end());
  if (std::adjacent_find(kept.begin(), kept.end()) != kept.end()) {
    return absl::DataLossError("ring: names a rank twice");
  }
  ring_.Form(record.from);
  epoch_ = record.epoch;
  ++report_.rings;
  return absl::OkStatus();
}

absl::Status Replayer::Take(EndRecord record) {
  report_.end = Name(PlanLogEndText(record.why));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReplayable(const PlanLogHeader& header, const Model& model) {
  const Sha256Digest digest = ModelDigest(model.file());
  if (header.model_digest != digest) {
    return Differs(
        "model",
        absl::StrCat(header.model_name, " (", ToHex(header.model_digest).substr(0, 16), ")"),
        absl::StrCat(model.config().name, " (", ToHex(digest).substr(0, 16), ")"));
  }
  const std::vector<CpuIsa> isas = AvailableCpuIsas();
  if (std::find(isas.begin(), isas.end(), header.isa) == isas.end()) {
    return Differs("instruction set", Name(CpuIsaName(header.isa)),
                   absl::StrCat("a CPU that has no more than ", Name(CpuIsaName(isas.back()))));
  }
  return CheckGeometry(header, model);
}

ReplayReport Replay(PlanLogReader& log, std::shared_ptr<const Model> model,
                    const ReplayOptions& options) {
  return Replayer(log, std::move(model), options).Run();
}

}  // namespace ringfill
