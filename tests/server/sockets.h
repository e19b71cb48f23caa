// Plain TCP for tests: connections, one HTTP GET, and a proxy that can cut its connections without
// a goodbye.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ringfill {

// A connection to 127.0.0.1:PORT, for the caller to close; -1 on failure.
int ConnectTcp(const std::string& address);

// The body of GET http://`address``path`; empty on any failure.
std::string HttpGet(const std::string& address, const std::string& path);

// Forwards connections on a loopback port of its own to `target` until it is cut.
class CuttableProxy {
 public:
  explicit CuttableProxy(std::string target);
  ~CuttableProxy();

  const std::string& address() const { return address_; }
  // Closes every connection under its users, as when a client is killed, and takes no new ones.
  void Cut();

 private:
  void Accept();
  void Pump(int from, int to);

  const std::string target_;
  std::string address_;
  int listener_ = -1;
  absl::Mutex mutex_;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> pumps_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace ringfill
