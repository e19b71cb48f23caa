#include "server/app/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "engine/worker/rank_machine.h"
#include "engine/worker/worker_process.h"
#include "server/app/command_line.h"
#include "server/app/config.h"
#include "server/app/engine_options.h"
#include "server/app/exit_codes.h"
#include "server/app/file_limit.h"
#include "server/app/logging.h"
#include "server/app/signals.h"
#include "server/text.h"

namespace ringfill {
namespace {

constexpr char kHelp[] =
    R"(One rank of a daemon whose ring.transport is processes. The daemon starts its workers itself
unless ring.start_workers is false: then start one for each rank, on this host or others. All take
part with the same model file and the same secret.

On the daemon's host:
  head -c 32 /dev/urandom | base64 > secret && chmod 600 secret
  ringfilld --set model.path=model.gguf --set ranks.count=2 --set ring.transport=processes \
    --set ring.start_workers=false --set ring.listen=10.0.0.1:7000 --set ring.secret_file=secret

For each rank, where it is to run:
  ringfilld worker --leader 10.0.0.1:7000 --rank 0 --secret-file secret --model model.gguf
  ringfilld worker --leader 10.0.0.1:7000 --rank 1 --secret-file secret --model model.gguf \
    --set compute.threads=16

What a worker computes with comes from the daemon, and on the daemon's host its number of threads
too. On another one it takes all cores unless compute.threads says otherwise: give it where several
workers share a host. Of the configuration it reads model.path, ranks.backend, compute.threads,
ring.secret_file, ring.join_timeout_s and log.level; compute.dtype, kv.dtype and compute.isa when
they are not auto: it refuses a daemon that has others.

Where the daemon says ranks.backend cuda, a worker computes on GPU --device of its machine, the first
one unless told: give each worker of a machine its own. It looks at that GPU when it joins, which
takes some of its memory; with --set ranks.backend=cpu it does not, and joins ranks on CPUs alone.
The ranks then talk through NCCL, over the network interfaces that NCCL_SOCKET_IFNAME names on every
host, the daemon's included, or those that it finds.

A worker started by hand that loses its daemon calls again for ring.join_timeout_s, then ends. One
whose rank is taken waits as a spare, without such a limit while the daemon answers, and takes the
rank over when it becomes free.
SIGTERM or SIGINT make it leave the ring; the others go on. One that the daemon started ends with
the daemon and ignores both.

Exit codes: 0 told to stop or sent home, 2 bad usage, 3 the model cannot be loaded, 4 refused: it
does not fit the daemon (its log says why), 5 the daemon is gone, cannot be reached, or one of the
two does not know the other's secret, 6 its GPU is lost: start it anew.)";

struct RawOptions {
  std::string leader;
  int rank = 0;
  std::string secret_file;
  int secret_fd = -1;
  std::string model;
  std::string listen_host;
  int device = 0;
  ConfigSources config;
};

// From the pipe of the daemon that started us.
absl::StatusOr<Secret> ReadSecret(int fd) {
  const absl::StatusOr<Secret> secret = Secret::FromDescriptor(fd);
  close(fd);
  return secret;
}

absl::StatusOr<Config> WorkerConfig(const RawOptions& raw) {
  RF_ASSIGN_OR_RETURN(Config config, ReadConfig(raw.config));
  if (!raw.model.empty()) config.model_path = raw.model;
  if (!raw.secret_file.empty()) config.ring_secret_file = raw.secret_file;
  RF_RETURN_IF_ERROR(SettleConfig(config));
  return config;
}

WantedDType Wanted(const std::optional<DType>& dtype) {
  if (!dtype.has_value()) return WantedDType::kAny;
  return *dtype == DType::kF32 ? WantedDType::kF32 : WantedDType::kBF16;
}

absl::StatusOr<WorkerOptions> ToWorkerOptions(const RawOptions& raw, const Config& config) {
  if (!IsAddress(raw.leader) || absl::EndsWith(raw.leader, ":0")) {
    return absl::InvalidArgumentError(
        Concat("--leader is \"", raw.leader, "\"; it must be HOST:PORT or [IPv6]:PORT"));
  }
  RF_ASSIGN_OR_RETURN(const EngineOptions engine, ToEngineOptions(config));
  if (raw.secret_fd < 0 && config.ring_secret_file.empty()) {
    return absl::InvalidArgumentError("give --secret-file FILE, the daemon's ring.secret_file");
  }
  RF_ASSIGN_OR_RETURN(Secret secret, raw.secret_fd >= 0
                                         ? ReadSecret(raw.secret_fd)
                                         : Secret::FromFile(config.ring_secret_file));
  const bool gpu = engine.backend != Backend::kCpu;
  return WorkerOptions{.leader = raw.leader,
                       .rank = raw.rank,
                       .secret = std::move(secret),
                       .model_path = config.model_path,
                       .threads = static_cast<int>(config.compute_threads),
                       .dtype = Wanted(engine.dtype),
                       .kv_dtype = Wanted(engine.kv_dtype),
                       .best_isa = engine.isa,
                       .gpus = gpu ? CudaMachines() : nullptr,
                       .device = raw.device,
                       .no_gpu = gpu ? kNoGpuSupport : "its ranks.backend is cpu",
                       .data_host = raw.listen_host,
                       .rejoin = raw.secret_fd < 0,
                       .join_limit = FromSeconds(config.ring_join_timeout_s)};
}

int ExitCode(WorkerEnd end) {
  switch (end) {
    case WorkerEnd::kGoodbye:
      return kExitOk;
    case WorkerEnd::kBadModel:
      return kExitModel;
    case WorkerEnd::kRefused:
      return kExitRefused;
    case WorkerEnd::kLeaderGone:
      return kExitLeaderGone;
    case WorkerEnd::kDeviceLost:
      return kExitDeviceLost;
  }
  return kExitLeaderGone;
}

// Its daemon drains when the terminal or a supervisor signals all processes, and needs it then.
int ServeDaemon(WorkerOptions options) {
  for (const int number : {SIGTERM, SIGINT}) signal(number, SIG_IGN);
  return ExitCode(WorkerProcess(std::move(options)).Run());
}

int ServeUntilSignal(WorkerOptions options) {
  StopSignals signals;  // before any thread starts
  WorkerProcess worker(std::move(options));
  std::thread stopper([&] {
    signals.WaitFirst();
    worker.Stop();
  });
  const int code = ExitCode(worker.Run());
  kill(getpid(), SIGTERM);  // for the stopper, when none has come
  stopper.join();
  return code;
}

void AddOptions(CLI::App& app, RawOptions& raw) {
  app.add_option("--leader", raw.leader, "Where the daemon awaits its workers (ring.listen)")
      ->type_name("HOST:PORT")
      ->required();
  app.add_option("--rank", raw.rank, "Which of the daemon's ranks this is, from 0")
      ->type_name("K")
      ->check(CLI::Range(0, kMaxMembers - 1))
      ->required();
  app.add_option("--secret-file", raw.secret_file,
                 "The shared secret; only you may be able to read it (chmod 600)")
      ->type_name("FILE");
  app.add_option("--secret-fd", raw.secret_fd, "")->group("");
  app.add_option("--model", raw.model, "The model, as --set model.path=FILE")->type_name("FILE");
  app.add_option("--listen", raw.listen_host,
                 "Where other ranks reach this one; the default is the address from which it "
                 "calls the daemon")
      ->type_name("HOST");
  app.add_option("--device", raw.device, "The GPU that it computes on where the daemon wants one")
      ->type_name("N")
      ->check(CLI::Range(0, kMaxGpus - 1));
  AddConfigOptions(app, raw.config);
}

}  // namespace

int RunWorker(int argc, const char* const* argv) {
  CLI::App app(kHelp, "ringfilld worker");
  RawOptions raw;
  AddOptions(app, raw);
  if (const std::optional<int> exit_code = ParseArguments(app, argc, argv)) return *exit_code;
  const absl::StatusOr<Config> config = WorkerConfig(raw);
  if (!config.ok()) return BadUsage(app, StdPiece(config.status().message()));
  absl::StatusOr<WorkerOptions> options = ToWorkerOptions(raw, *config);
  if (!options.ok()) return BadUsage(app, StdPiece(options.status().message()));
  SetUpLogging(config->log_level);
  RaiseFileLimit();
  prctl(PR_SET_NAME, Concat("rf-worker-", raw.rank).c_str());
  return raw.secret_fd >= 0 ? ServeDaemon(*std::move(options))
                            : ServeUntilSignal(*std::move(options));
}

}  // namespace ringfill
