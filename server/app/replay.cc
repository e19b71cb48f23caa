#include "server/app/replay.h"

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "engine/replay/replay.h"
#include "nlohmann/json.hpp"
#include "server/app/command_line.h"
#include "server/app/config.h"
#include "server/app/engine_options.h"
#include "server/app/exit_codes.h"
#include "server/app/logging.h"
#include "server/text.h"

namespace ringfill {
namespace {

constexpr char kHelp[] =
    R"(Runs the steps that a daemon recorded again, on the same model, with ranks as threads of this
process, and compares what comes out with what the log says came out. Answers two questions: does a
wrong answer come again (then it can be searched for here, with a debugger or another build), and
does a changed program still compute what the old one did.

Record, then replay:
  ringfilld --config my.yaml --set debug.plan_log=run.plan
  ringfilld replay --plan-log run.plan --model model.gguf
  ringfilld replay --plan-log run.plan --config my.yaml --json

The log says what the steps were computed with: model, types, instruction set, numerics, ranks,
pages. A model, a CPU or a configured compute.dtype, kv.dtype, compute.isa (when not auto) or
compute.numerics (when strict) that does not fit is refused by name. Of the configuration only
these, model.path, compute.threads and debug.plan_log are read. Logs of worker processes and of
rings that lost ranks or got new ones are replayed too; steps that failed are passed over, as their
work was done again.

With compute.numerics strict the results must be equal in every bit; otherwise logits and
log-probabilities may differ by --tolerance (of magnitudes above 1: in proportion). The first step
that differs is printed, and the replay ends there unless --keep-going is given. A log that ends
without an end record, because its daemon died, is replayed to its last whole step, and a last step
that has no results is run without comparison. Ranks wait ten minutes for each other, or for
ring.min_round_timeout_ms where that is longer: set it to stand at a breakpoint.

The log holds the tokens of all prompts: treat it as you treat them.

Exit codes: 0 all results agree, 1 results differ, 2 bad usage, 3 the model cannot be loaded, 4 the
log cannot be used: it is no log, is damaged, or does not fit the model or this machine.)";

struct RawOptions {
  std::string plan_log;
  std::string model;
  ConfigSources config;
  std::optional<double> tolerance;
  bool keep_going = false;
  bool json = false;
};

// CLI11's own check lets NaN and infinity pass.
const CLI::Validator kTolerance(
    [](std::string& text) {
      double tolerance = 0;
      const bool good =
          absl::SimpleAtod(text, &tolerance) && std::isfinite(tolerance) && tolerance >= 0;
      return good ? std::string() : std::string("must be a number from 0 up, such as 0.001");
    },
    "", "");

absl::StatusOr<Config> ReplayConfig(const RawOptions& raw) {
  RF_ASSIGN_OR_RETURN(Config config, ReadConfig(raw.config));
  if (!raw.model.empty()) config.model_path = raw.model;
  if (!raw.plan_log.empty()) config.debug_plan_log = raw.plan_log;
  if (config.debug_plan_log.empty()) {
    return absl::InvalidArgumentError("give --plan-log FILE, the daemon's debug.plan_log");
  }
  RF_RETURN_IF_ERROR(SettleConfig(config));
  return config;
}

// What the configuration insists on and the log does not have.
absl::Status CheckConfigured(const PlanLogHeader& header, const Config& config) {
  RF_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(config));
  const auto refuse = [](std::string_view key, std::string_view wanted, std::string_view has) {
    return absl::FailedPreconditionError(
        Concat(key, ": the configuration says ", wanted, ", the log was made with ", has));
  };
  if (options.dtype.value_or(header.dtype) != header.dtype) {
    return refuse("compute.dtype", config.compute_dtype, DTypeName(header.dtype));
  }
  if (options.kv_dtype.value_or(header.kv_dtype) != header.kv_dtype) {
    return refuse("kv.dtype", config.kv_dtype, DTypeName(header.kv_dtype));
  }
  if (config.compute_isa != "auto" && options.isa != header.isa) {
    return refuse("compute.isa", config.compute_isa, CpuIsaName(header.isa));
  }
  if (options.strict && !header.strict) return refuse("compute.numerics", "strict", "fast");
  return absl::OkStatus();
}

nlohmann::ordered_json ReportJson(const PlanLogHeader& header, const ReplayReport& report) {
  const Agreement& a = report.agreement;
  nlohmann::ordered_json json = {
      {"agrees", report.agrees()},
      {"model", header.model_name},
      {"ranks", header.ranks},
      {"compute_dtype", DTypeName(header.dtype)},
      {"kv_dtype", DTypeName(header.kv_dtype)},
      {"isa", CpuIsaName(header.isa)},
      {"numerics", header.strict ? "strict" : "fast"},
      {"steps", report.steps},
      {"failed_steps", report.failed_steps},
      {"rings", report.rings},
      {"rows", a.rows},
      {"equal_rows", a.equal_rows},
      {"scores", a.scores},
      {"equal_scores", a.equal_scores},
      {"different_steps", report.different_steps},
      {"end", report.end},
  };
  // JSON has no infinity.
  json["largest_difference"] =
      std::isfinite(a.largest) ? nlohmann::ordered_json(a.largest) : nlohmann::ordered_json();
  json["tolerance"] =
      header.strict ? nlohmann::ordered_json() : nlohmann::ordered_json(report.tolerance);
  if (report.first.has_value()) {
    json["first_difference"] = {
        {"epoch", report.first->epoch}, {"step", report.first->step}, {"what", report.first->what}};
  }
  if (!report.broken.ok()) json["error"] = std::string(report.broken.message());
  return json;
}

void PrintReport(const PlanLogHeader& header, const ReplayReport& report) {
  const Agreement& a = report.agreement;
  std::cout << Concat(header.model_name, ", ", header.ranks,
                      header.ranks == 1 ? " rank, " : " ranks, ", DTypeName(header.dtype), ", ",
                      CpuIsaName(header.isa), ", ", header.strict ? "strict" : "fast",
                      " numerics\n");
  std::cout << Concat("ran ", report.steps, " steps in ", report.rings,
                      report.rings == 1 ? " ring" : " rings", ", passed over ", report.failed_steps,
                      " that had failed\n");
  std::cout << Concat(
      "compared ", a.rows, " rows of logits (", a.equal_rows, " equal in every bit) and ", a.scores,
      " scores (", a.equal_scores, "), largest difference ", a.largest,
      header.strict ? std::string(", none is allowed") : Concat(", allowed ", report.tolerance),
      "\n");
  if (report.first.has_value()) {
    std::cout << Concat("step ", report.first->step, " of epoch ", report.first->epoch,
                        " differs: ", report.first->what, "\n");
    if (report.different_steps > 1) {
      std::cout << Concat(report.different_steps, " steps differ\n");
    }
  } else if (report.steps == 0) {
    std::cout << "no step has results to compare\n";
  } else {
    std::cout << (report.broken.ok() ? "all results agree\n"
                                     : "all results agree up to where the log cannot be used\n");
  }
  if (!report.end.empty()) std::cout << Concat("the log ends: ", report.end, "\n");
}

int Complain(std::string_view what, int code) {
  std::cerr << "ringfilld replay: " << what << "\n";
  return code;
}

int ReplayFile(const RawOptions& raw, const Config& config) {
  absl::StatusOr<std::unique_ptr<PlanLogReader>> log = PlanLogReader::Open(config.debug_plan_log);
  if (!log.ok()) return Complain(StdPiece(log.status().message()), kExitRefused);
  const PlanLogHeader& header = (*log)->header();
  absl::StatusOr<std::unique_ptr<Model>> loaded = Model::Load(config.model_path);
  if (!loaded.ok()) return Complain(StdPiece(loaded.status().message()), kExitModel);
  const std::shared_ptr<const Model> model = *std::move(loaded);
  absl::Status fits = CheckConfigured(header, config);
  fits.Update(CheckReplayable(header, *model));
  if (!fits.ok()) return Complain(StdPiece(fits.message()), kExitRefused);
  ReplayOptions options;
  options.threads = static_cast<int>(config.compute_threads);
  options.tolerance = raw.tolerance;
  options.keep_going = raw.keep_going;
  options.min_round_timeout = std::max<Duration>(
      options.min_round_timeout, std::chrono::milliseconds(config.ring_min_round_timeout_ms));
  const ReplayReport report = Replay(**log, model, options);
  if (raw.json) {
    std::cout << ReportJson(header, report)
                     .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
  } else {
    PrintReport(header, report);
  }
  if (!report.broken.ok()) Complain(StdPiece(report.broken.message()), kExitRefused);
  if (report.first.has_value()) return kExitDiffers;
  return report.broken.ok() ? kExitOk : kExitRefused;
}

void AddOptions(CLI::App& app, RawOptions& raw) {
  app.add_option("--plan-log", raw.plan_log, "The log, as --set debug.plan_log=FILE")
      ->type_name("FILE");
  app.add_option("--model", raw.model, "The model, as --set model.path=FILE")->type_name("FILE");
  AddConfigOptions(app, raw.config);
  app.add_option("--tolerance", raw.tolerance,
                 Concat("What results may differ by with fast numerics; the default is ",
                        kReplayToleranceF32, " for f32, ", kReplayToleranceBf16, " for bf16"))
      ->type_name("X")
      ->check(kTolerance);
  app.add_flag("--keep-going", raw.keep_going, "Replays the steps behind the first difference too");
  app.add_flag("--json", raw.json, "Prints the outcome as JSON");
}

}  // namespace

int RunReplay(int argc, const char* const* argv) {
  CLI::App app(kHelp, "ringfilld replay");
  RawOptions raw;
  AddOptions(app, raw);
  if (const std::optional<int> exit_code = ParseArguments(app, argc, argv)) return *exit_code;
  const absl::StatusOr<Config> config = ReplayConfig(raw);
  if (!config.ok()) return BadUsage(app, StdPiece(config.status().message()));
  SetUpLogging(config->log_level);
  return ReplayFile(raw, *config);
}

}  // namespace ringfill
