#include "tests/server/ringfilld.h"

#include "tests/server/test_daemon.h"

namespace ringfill {
namespace {

std::vector<std::string> Command(const std::vector<std::string>& arguments,
                                 const std::string& under) {
  std::vector<std::string> command = {"/bin/sh", "-c", under + " && exec \"$@\"", "sh", RINGFILLD};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::vector<std::string> Serving(const std::vector<std::string>& settings) {
  std::vector<std::string> arguments;
  for (const std::string& setting :
       {"model.path=" + TinyModelPath(), std::string("server.listen=127.0.0.1:0"),
        std::string("metrics.listen=127.0.0.1:0"), std::string("ranks.count=2")}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return arguments;
}

}  // namespace

Exit RunRingfilld(const std::vector<std::string>& arguments, const std::string& under) {
  Subprocess process(Command(arguments, under));
  const int code = process.Wait();
  return {code, process.rest_of_output(), process.Errors()};
}

std::vector<std::string> ServeCommand(const std::vector<std::string>& settings,
                                      const std::string& under) {
  return Command(Serving(settings), under);
}

Ringfilld::Ringfilld(const std::vector<std::string>& settings, const std::string& under)
    : process_(ServeCommand(settings, under)), ready_(process_.ReadLine()) {
  const size_t grpc = ready_.find("grpc="), metrics = ready_.find(" metrics=");
  if (grpc == std::string::npos || metrics == std::string::npos) return;
  grpc_address_ = ready_.substr(grpc + 5, metrics - grpc - 5);
  metrics_address_ = ready_.substr(metrics + 9);
  stub_ = TestDaemon::Connect(grpc_address_);
}

}  // namespace ringfill
