#include "server/metrics/metrics_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/text.h"

namespace ringfill {
namespace {

// A connection that says nothing holds one thread until the timeout.
constexpr char kThreads[] = "8";
constexpr char kRequestTimeoutMs[] = "2000";
constexpr auto kNudgePeriod = absl::Milliseconds(10);

// Calls `use` (connect, bind) with a new socket for a numeric address and closes it. What failed,
// in words; empty when nothing did.
std::string WithSocket(const std::string& host, const std::string& port,
                       int (*use)(int, const sockaddr*, socklen_t)) {
  const bool bracketed = host.starts_with('[');
  const std::string bare = bracketed ? host.substr(1, host.size() - 2) : host;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(bare.c_str(), port.c_str(), &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool done = fd >= 0 && use(fd, found->ai_addr, found->ai_addrlen) == 0;
  std::string failed = done ? "" : std::strerror(errno);
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  return failed;
}

// The HTTP server does not say why it cannot listen, so this tries to.
std::string WhyNot(const std::string& host, const std::string& port) {
  std::string failed = WithSocket(host, port, bind);
  if (!failed.empty()) return failed;
  return host.starts_with('[') ? "the HTTP server takes no IPv6 address; give one of IPv4"
                               : "the HTTP server does not start (are threads or files limited?)";
}

}  // namespace

MetricsEndpoint::~MetricsEndpoint() {
  if (exposer_ == nullptr) return;
  // The HTTP server's accepting thread looks at its stop flag every two seconds, or when a
  // connection comes: it gets one.
  absl::Notification stopped;
  std::thread nudger([&] {
    while (!stopped.WaitForNotificationWithTimeout(kNudgePeriod))
      WithSocket(host_, std::to_string(port_), connect);
  });
  exposer_.reset();
  stopped.Notify();
  nudger.join();
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& listen,
                                                                        const Metrics& metrics) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";  // the HTTP server takes addresses only
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  endpoint->registry_ = metrics.registry();
  endpoint->process_ = std::make_shared<ProcessMetrics>();
  const auto cannot_listen = [&] {
    return absl::InvalidArgumentError(Concat("metrics.listen: cannot listen on ", listen, ": ",
                                             WhyNot(host, listen.substr(colon + 1))));
  };
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", Concat(host, listen.substr(colon)),
                                 "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs});
    const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
    if (ports.empty()) return cannot_listen();
    endpoint->host_ = host;
    endpoint->port_ = ports[0];
    endpoint->address_ = Concat(host, ":", ports[0]);
    endpoint->exposer_->RegisterCollectable(endpoint->registry_);
    endpoint->exposer_->RegisterCollectable(endpoint->process_);
  } catch (const std::exception&) {
    return cannot_listen();
  }
  return endpoint;
}

}  // namespace ringfill
