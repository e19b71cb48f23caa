#include "server/app/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace ringfill {

namespace {

constexpr int kSignalExit = 128;  // and the signal's number, as shells have it

}  // namespace

void IgnoreWriteSignals() {
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
}

StopSignals::StopSignals(std::optional<int> early_exit_code, std::function<void()> on_hangup)
    : on_hangup_(std::move(on_hangup)), early_exit_code_(early_exit_code) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (on_hangup_) sigaddset(&signals, SIGHUP);
  RF_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  RF_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Watch(); });
}

StopSignals::~StopSignals() {
  const uint64_t one = 1;
  RF_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void StopSignals::Started() {
  MutexLock lock(&mutex_);
  early_exit_code_.reset();
}

void StopSignals::NoteFirst(int number) {
  MutexLock lock(&mutex_);
  if (early_exit_code_.has_value()) {
    Log(LogLevel::kInfo, "stopped before it was ready", {{"signal", strsignal(number)}});
    _exit(*early_exit_code_);
  }
  first_signal_ = number;
  first_.Notify();
}

void StopSignals::NoteHangup() {
  {
    MutexLock lock(&mutex_);
    if (early_exit_code_.has_value() || first_.HasBeenNotified()) return;
  }
  on_hangup_();
}

int StopSignals::WaitFirst() {
  first_.WaitForNotification();
  return first_signal_;
}

void StopSignals::Watch() {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) {
      RF_CHECK(errno == EINTR);
      continue;
    }
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    if (info.ssi_signo == SIGHUP) {
      NoteHangup();
    } else if (!first_.HasBeenNotified()) {
      NoteFirst(static_cast<int>(info.ssi_signo));
    } else if (!second_.HasBeenNotified()) {
      second_.Notify();
    } else {
      _exit(kSignalExit + static_cast<int>(info.ssi_signo));
    }
  }
}

}  // namespace ringfill
