#include "tests/testing/fault_proxy.h"

#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"

namespace ringfill {
namespace {

constexpr size_t kMaxRoutes = 64;
constexpr size_t kMaxQueued = 1 << 20;  // bytes read and not yet forwarded, a direction
constexpr size_t kMaxHistory = 1 << 20;
constexpr Duration kLook = std::chrono::milliseconds(20);

}  // namespace

// One direction of a connection.
struct FaultProxy::Pipe {
  const Fd* from;
  const Fd* to;
  FaultPlan::Direction direction;
  struct Held {
    Instant due;
    std::vector<std::byte> bytes;
  };
  std::deque<Held> held;
  size_t queued = 0;
  std::vector<std::byte> history;  // the last that were forwarded
  int64_t passed = 0;              // since the plan was set
  bool struck = false;             // the fault has begun, or was done
  bool from_ended = false, to_ended = false;
  bool blocked = false;  // the receiver takes no more for now
};

struct FaultProxy::Route {
  Fd caller, target;
  Pipe to_target, to_caller;
  uint64_t plan_number = 0;
  bool blackhole = false, broken = false;
};

std::unique_ptr<FaultProxy> FaultProxy::Start(std::string target, const FaultPlan& plan) {
  Fd listener = ListenTcp({"127.0.0.1", 0}).value();
  const HostPort at = LocalAddress(listener).value();
  return std::unique_ptr<FaultProxy>(
      new FaultProxy(std::move(target), plan, std::move(listener), HostPortText(at)));
}

FaultProxy::FaultProxy(std::string target, const FaultPlan& plan, Fd listener, std::string address)
    : target_(std::move(target)),
      listener_(std::move(listener)),
      address_(std::move(address)),
      plan_(plan),
      thread_([this] { Run(); }) {}

FaultProxy::~FaultProxy() {
  stopping_ = true;
  waker_.Wake();
  thread_.join();
}

void FaultProxy::Set(const FaultPlan& plan) {
  MutexLock lock(&mutex_);
  plan_ = plan;
  const uint64_t number = ++plan_number_;
  waker_.Wake();
  while (taken_number_ < number) taken_.Wait(&mutex_);
}

void FaultProxy::AcceptCaller() {
  auto caller = AcceptTcp(listener_);
  if (!caller.ok() || !caller->has_value() || routes_.size() >= kMaxRoutes) return;
  auto target =
      ConnectTcp(ParseHostPort(target_).value(), Clock::Real().Now() + std::chrono::seconds(5));
  if (!target.ok()) return;
  auto route = std::make_unique<Route>();
  route->caller = std::move((*caller)->socket);
  route->target = *std::move(target);
  route->to_target.from = route->to_caller.to = &route->caller;
  route->to_target.to = route->to_caller.from = &route->target;
  route->to_target.direction = FaultPlan::Direction::kToTarget;
  route->to_caller.direction = FaultPlan::Direction::kToCaller;
  routes_.push_back(std::move(route));
}

void FaultProxy::Run() {
  while (!stopping_) {
    FaultPlan plan;
    uint64_t number;
    {
      MutexLock lock(&mutex_);
      plan = plan_;
      taken_number_ = number = plan_number_;
      taken_.SignalAll();
    }
    std::vector<pollfd> polled = {{waker_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    Instant until = Clock::Real().Now() + kLook;
    for (const auto& route : routes_) {
      if (route->plan_number != number) {
        route->plan_number = number;
        for (Pipe* pipe : {&route->to_target, &route->to_caller}) {
          pipe->passed = 0;
          pipe->struck = false;
        }
      }
      for (Pipe* pipe : {&route->to_target, &route->to_caller}) {
        const bool open = !route->blackhole && !pipe->from_ended && pipe->queued < kMaxQueued;
        if (open) polled.push_back({pipe->from->get(), POLLIN, 0});
        if (pipe->blocked) polled.push_back({pipe->to->get(), POLLOUT, 0});
        if (!pipe->held.empty() && !pipe->blocked) {
          until = std::min(until, pipe->held.front().due);
        }
      }
    }
    PollUntil(polled, until);
    waker_.Clear();
    for (const auto& route : routes_) {
      Move(*route, route->to_target, plan);
      Move(*route, route->to_caller, plan);
    }
    std::erase_if(routes_, [](const auto& route) {
      return route->broken || (route->to_target.to_ended && route->to_caller.to_ended);
    });
    AcceptCaller();
  }
}

void FaultProxy::Move(Route& route, Pipe& pipe, const FaultPlan& plan) {
  if (route.blackhole || route.broken) return;
  if (!pipe.from_ended && pipe.queued < kMaxQueued) {
    std::vector<std::byte> came(64 << 10);
    const iovec part = {came.data(), came.size()};
    const auto moved = ReadSome(*pipe.from, std::span(&part, 1));
    if (!moved.ok()) {
      route.broken = true;
      return;
    }
    pipe.from_ended = moved->end;
    came.resize(moved->bytes);
    if (!came.empty()) Apply(route, pipe, plan, std::move(came));
  }
  if (!route.blackhole && !route.broken) Flush(route, pipe);
}

void FaultProxy::Apply(Route& route, Pipe& pipe, const FaultPlan& plan,
                       std::vector<std::byte> came) {
  const Instant now = Clock::Real().Now();
  const auto hold = [&](std::vector<std::byte> bytes, Duration delay) {
    if (bytes.empty()) return;
    pipe.history.insert(pipe.history.end(), bytes.begin(), bytes.end());
    if (pipe.history.size() > 2 * kMaxHistory) {
      pipe.history.erase(pipe.history.begin(), pipe.history.end() - kMaxHistory);
    }
    const Instant after = pipe.held.empty() ? now : std::max(now, pipe.held.back().due);
    pipe.queued += bytes.size();
    pipe.held.push_back({after + delay, std::move(bytes)});
  };
  const int64_t here = plan.after_bytes - pipe.passed;  // the fault begins before this byte
  pipe.passed += static_cast<int64_t>(came.size());
  const bool chosen = plan.fault != Fault::kNone && plan.direction == pipe.direction;
  if (!chosen || here >= static_cast<int64_t>(came.size())) return hold(std::move(came), {});
  const bool lasting = plan.fault == Fault::kDelay || plan.fault == Fault::kTrickle;
  if (pipe.struck && !lasting) return hold(std::move(came), {});
  if (!pipe.struck) ++faults_;
  pipe.struck = true;
  const size_t at = static_cast<size_t>(std::max<int64_t>(here, 0));
  std::vector<std::byte> rest(came.begin() + at, came.end());
  came.resize(at);
  hold(std::move(came), {});
  switch (plan.fault) {
    case Fault::kNone:
      break;
    case Fault::kDelay:
      hold(std::move(rest), plan.delay);
      break;
    case Fault::kTrickle:
      for (const std::byte byte : rest) hold({byte}, plan.delay);
      break;
    case Fault::kBlackhole:
      Flush(route, pipe);
      route.blackhole = true;
      break;
    case Fault::kCut: {
      Flush(route, pipe);
      const linger reset = {1, 0};
      for (const Fd* socket : {&route.caller, &route.target}) {
        setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      }
      route.broken = true;
      break;
    }
    case Fault::kEnd:
      Flush(route, pipe);
      route.broken = true;
      break;
    case Fault::kFlip:
      rest[0] ^= static_cast<std::byte>(1 << plan.flip_bit);
      hold(std::move(rest), {});
      break;
    case Fault::kReplay: {
      const size_t bytes = std::min<size_t>(pipe.history.size(), plan.replay_bytes);
      hold(std::vector<std::byte>(pipe.history.end() - bytes, pipe.history.end()), {});
      hold(std::move(rest), {});
      break;
    }
    case Fault::kDrop:
      rest.erase(rest.begin());
      hold(std::move(rest), {});
      break;
  }
}

void FaultProxy::Flush(Route& route, Pipe& pipe) {
  const Instant now = Clock::Real().Now();
  pipe.blocked = false;
  while (!pipe.held.empty() && pipe.held.front().due <= now) {
    std::vector<std::byte>& bytes = pipe.held.front().bytes;
    const iovec part = {bytes.data(), bytes.size()};
    const auto put = WriteSome(*pipe.to, std::span(&part, 1));
    if (!put.ok()) {
      route.broken = true;
      return;
    }
    bytes_ += static_cast<int64_t>(*put);
    pipe.queued -= *put;
    if (*put < bytes.size()) {
      bytes.erase(bytes.begin(), bytes.begin() + *put);
      pipe.blocked = true;
      return;
    }
    pipe.held.pop_front();
  }
  if (pipe.from_ended && pipe.held.empty() && !pipe.to_ended) {
    ShutdownWrites(*pipe.to);
    pipe.to_ended = true;
  }
}

}  // namespace ringfill
