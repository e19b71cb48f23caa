#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"
#include "cli/options.h"

namespace ringfill::cli {

Interrupt::Interrupt() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  RF_CHECK(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  RF_CHECK(signal_fd_ >= 0 && stop_fd_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  RF_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(stop_fd_);
}

void Interrupt::Run() {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    // The first one may be stuck behind a full pipe; do not wait for it.
    if (requested_.exchange(true)) _exit(kRequestFailed);
    absl::MutexLock lock(&mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
}

Interrupt::Scope::Scope(Interrupt& interrupt, grpc::ClientContext& context)
    : interrupt_(interrupt) {
  absl::MutexLock lock(&interrupt_.mutex_);
  interrupt_.context_ = &context;
  if (interrupt_.requested()) context.TryCancel();
}

Interrupt::Scope::~Scope() {
  absl::MutexLock lock(&interrupt_.mutex_);
  interrupt_.context_ = nullptr;
}

}  // namespace ringfill::cli
