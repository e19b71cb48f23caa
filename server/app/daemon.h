// The whole service in one object: model, engine, gRPC server, metrics endpoint, watcher. ringfilld
// runs one; tests run several in a process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "server/app/config.h"
#include "server/app/served_model.h"

namespace ringfill {

// Start and Shutdown follow one order: engine, queues, gRPC server, metrics, watcher; and back.
class Daemon {
 public:
  // `config` is settled. INVALID_ARGUMENT when an option does not fit or an address cannot be
  // bound. Serving has begun when it returns.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config, ServedModel model);
  // The same, loading the model of the configuration.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  // Shutdown without a grace, if that has not been called.
  ~Daemon();

  // HOST:PORT with the real ports; metrics are empty when switched off.
  const std::string& grpc_address() const;
  std::string metrics_address() const;
  const Engine& engine() const;
  // An engine that has made no progress for so many seconds is not ready.
  double stalled_s() const;

  // Not ready at once, refuses new requests, lets running ones finish for at most `grace` (less as
  // soon as `hurry` says so), ends the rest with UNAVAILABLE and closes everything. Once.
  void Shutdown(Duration grace, const std::function<bool()>& hurry);

 private:
  Daemon();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfill
