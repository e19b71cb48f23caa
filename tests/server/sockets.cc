#include "tests/server/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"

namespace ringfill {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool SendAll(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

int ConnectTcp(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = Loopback(std::atoi(address.c_str() + address.rfind(':') + 1));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const int fd = ConnectTcp(address);
  if (fd < 0) return "";
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (SendAll(fd, request.data(), request.size())) {
    char buffer[16384];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 200") || body == std::string::npos) return "";
  return answer.substr(body + 4);
}

CuttableProxy::CuttableProxy(std::string target) : target_(std::move(target)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any = Loopback(0);
  socklen_t size = sizeof(any);
  RF_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&any), size) == 0);
  RF_CHECK(listen(listener_, 16) == 0);
  RF_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size) == 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
  acceptor_ = std::thread([this] { Accept(); });
}

CuttableProxy::~CuttableProxy() {
  Cut();
  acceptor_.join();
  std::vector<std::thread> pumps;
  {
    absl::MutexLock lock(&mutex_);
    pumps.swap(pumps_);
  }
  for (std::thread& pump : pumps) pump.join();
  for (const int fd : sockets_) close(fd);
  close(listener_);
}

void CuttableProxy::Cut() {
  absl::MutexLock lock(&mutex_);
  if (cut_) return;
  cut_ = true;
  shutdown(listener_, SHUT_RDWR);
  for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
}

void CuttableProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = ConnectTcp(target_);
    absl::MutexLock lock(&mutex_);
    if (cut_ || server < 0) {
      close(client);
      if (server >= 0) close(server);
      continue;
    }
    sockets_.insert(sockets_.end(), {client, server});
    pumps_.emplace_back([=, this] { Pump(client, server); });
    pumps_.emplace_back([=, this] { Pump(server, client); });
  }
}

void CuttableProxy::Pump(int from, int to) {
  char buffer[16384];
  for (ssize_t n; (n = recv(from, buffer, sizeof(buffer), 0)) > 0;) {
    if (!SendAll(to, buffer, static_cast<size_t>(n))) return;
  }
}

}  // namespace ringfill
