#include "server/metrics/metrics_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

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

// Connects to a numeric address and hangs up.
void Nudge(const std::string& host, int port) {
  const bool bracketed = host.starts_with('[');
  const std::string bare = bracketed ? host.substr(1, host.size() - 2) : host;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    (void)connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

MetricsEndpoint::~MetricsEndpoint() {
  if (exposer_ == nullptr) return;
  // The HTTP server's accepting thread looks at its stop flag every two seconds, or when a
  // connection comes.
  absl::Notification stopped;
  std::thread nudger([&] {
    while (!stopped.WaitForNotificationWithTimeout(kNudgePeriod)) Nudge(host_, port_);
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
  const auto cannot_listen = [&](std::string_view why) {
    return absl::InvalidArgumentError(Concat("metrics.listen: cannot listen on ", listen, ": ", why,
                                             " (is the address local, and the port free?)"));
  };
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", Concat(host, listen.substr(colon)),
                                 "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs});
    const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
    if (ports.empty()) return cannot_listen("no port");
    endpoint->host_ = host;
    endpoint->port_ = ports[0];
    endpoint->address_ = Concat(host, ":", ports[0]);
    endpoint->exposer_->RegisterCollectable(endpoint->registry_);
    endpoint->exposer_->RegisterCollectable(endpoint->process_);
  } catch (const std::exception& e) {
    return cannot_listen(e.what());
  }
  return endpoint;
}

}  // namespace ringfill
