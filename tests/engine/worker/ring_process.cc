// What the tests of rank processes start: a worker, as ringfilld would be one, or an engine that
// leads some and can be killed.
//
//   ring_process worker --leader A --rank K --secret-fd F --model M [--version V] [--memory B]
//   [--host H] [--boot-id B] ring_process lead RANKS MODEL    until it is killed
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <string>

#include "engine/worker/worker_process.h"
#include "tests/engine/engine_cases.h"
#include "tests/engine/worker/process_ring.h"

namespace ringfill {
namespace {

int RunWorker(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::map<std::string, std::string> words;
  for (int i = 2; i + 1 < argc; i += 2) words[argv[i]] = argv[i + 1];
  const Secret secret = words.contains("--secret-fd")
                            ? Secret::FromDescriptor(std::stoi(words["--secret-fd"])).value()
                            : Secret::FromBytes(words["--secret"]).value();
  WorkerOptions options{.leader = words["--leader"],
                        .rank = std::stoi(words["--rank"]),
                        .secret = secret,
                        .model_path = words["--model"]};
  if (words.contains("--other-model")) options.model_path = words["--other-model"];
  if (words.contains("--version")) {
    options.version = static_cast<uint32_t>(std::stoul(words["--version"]));
  }
  if (words.contains("--memory")) options.memory_bytes = std::stoll(words["--memory"]);
  if (words.contains("--host")) options.host = words["--host"];
  if (words.contains("--boot-id")) options.boot_id = words["--boot-id"];
  if (words["--dtype"] == "bf16") options.dtype = WantedDType::kBF16;
  options.rejoin = words["--rejoin"] == "yes";
  options.join_limit = std::chrono::minutes(10);  // longer than any test keeps the leader away
  return static_cast<int>(WorkerProcess(options).Run());
}

int Lead(int ranks, const std::string& model) {
  ProcessRing ring(model, SmallOptions(ranks), RosterForTests(model));
  while (true) pause();
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "worker") return ringfill::RunWorker(argc, argv);
  if (what == "lead" && argc == 4) return ringfill::Lead(std::atoi(argv[2]), argv[3]);
  return 2;
}
