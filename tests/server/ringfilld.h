// ringfilld as a process of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ringfill/v1/ringfill.grpc.pb.h"
#include "tests/server/subprocess.h"

namespace ringfill {

struct Exit {
  int code;
  std::string out;
  std::string err;
};
// A command of ringfilld that ends by itself. `under`: of the shell, before it starts, such as
// "ulimit -n 100".
Exit RunRingfilld(const std::vector<std::string>& arguments, const std::string& under = "true");

// How a daemon on the tiny model, two ranks and free ports is started.
std::vector<std::string> ServeCommand(const std::vector<std::string>& settings,
                                      const std::string& under = "true");

// A running daemon on the tiny model, two ranks and free ports.
class Ringfilld {
 public:
  explicit Ringfilld(const std::vector<std::string>& settings = {},
                     const std::string& under = "true");

  Subprocess& process() { return process_; }
  // The line that it printed.
  const std::string& ready() const { return ready_; }
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  v1::Ringfill::Stub& stub() { return *stub_; }

 private:
  Subprocess process_;
  std::string ready_;
  std::string grpc_address_;
  std::string metrics_address_;
  std::unique_ptr<v1::Ringfill::Stub> stub_;
};

}  // namespace ringfill
