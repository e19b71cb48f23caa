// One call that runs a request on the engine: conversion, submission, events out with one write in
// flight, cancellation, exactly one status, and its log line and metrics.
//
// Threads: gRPC's (start, write ended, cancelled, done), the conversion queue, the event queue and
// the daemon's watcher. All state is under one mutex; gRPC and the outbox are called without it.
//
// Ownership: the call owns itself from Start until gRPC's OnDone; others hold weak references.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/request/outbox.h"
#include "grpcpp/server_context.h"
#include "server/rpc/rpc_services.h"
#include "server/trace/traceparent.h"

namespace ringfill {

class EngineCall : public std::enable_shared_from_this<EngineCall> {
 public:
  using Convert = std::function<absl::StatusOr<Request>()>;

  virtual ~EngineCall();
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

  // Registers the call, then converts and submits: here when the request is small, in the
  // conversion queue otherwise. Once, right after construction.
  void Start(size_t request_bytes, Convert convert);
  // Ends the call with `status` unless it has ended already; the engine drops its request.
  void End(absl::Status status);
  // Ends the call when its write has been in flight for longer than the limit.
  void CheckStall(Instant now);

 protected:
  EngineCall(RpcServices& services, Rpc rpc, grpc::CallbackServerContext& context);

  // For the reactor's notifications.
  void WriteEnded(bool ok);
  void PeerGone();
  void Ended();

  const std::string& request_id() const { return request_id_; }

  // Takes an event (never Failed). True when a message is ready, which SendWrite then writes.
  // Called with the mutex held; must not call back.
  virtual bool Stage(const RequestEvent& event) = 0;
  virtual void SendWrite() = 0;
  virtual void SendStatus(const grpc::Status& status) = 0;

 private:
  enum class Action { kNothing, kWrite, kStatus };

  void ConvertAndSubmit(const Convert& convert);
  absl::StatusOr<std::shared_ptr<Outbox>> Submit(absl::StatusOr<Request> request);
  void Wake();
  void Advance();
  Action NextAction(absl::Status& status);
  void Note(const RequestEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ended() const;
  void WriteLog(const absl::Status& status, double seconds);

  RpcServices& services_;
  const Rpc rpc_;
  grpc::CallbackServerContext& context_;
  const Instant arrived_;
  const std::optional<Instant> deadline_;
  const std::optional<Traceparent> trace_;  // the caller's
  std::string request_id_;                  // set before the request is submitted, then constant
  std::shared_ptr<EngineCall> self_;        // from Start to Ended
  std::atomic<bool> waits_in_queue_{false};

  mutable absl::Mutex mutex_;
  // Conversions, writes and cancellations under way: the status is sent when there is none.
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Outbox> outbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // how the call ends
  bool status_sent_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Instant> writing_since_ ABSL_GUARDED_BY(mutex_);
  bool last_write_ ABSL_GUARDED_BY(mutex_) = false;
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  Timings timings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ringfill
