#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <optional>

#include "cli/progress.h"
#include "engine/request/retry.h"

namespace ringfill::cli {

void Console::PrintError(const absl::Status& status) {
  err << "ringfill: " << absl::StatusCodeToString(status.code()) << ": " << status.message()
      << std::endl;
  if (const std::optional<Duration> delay = RetryAfter(status)) {
    PrintNote("try again in " + FormatSeconds(Seconds(*delay)));
  }
}

void Console::PrintNote(const std::string& message) { err << "ringfill: " << message << std::endl; }

bool Console::FlushOut() {
  out.flush();
  if (out.good()) return true;
  PrintNote("standard output cannot be written");
  return false;
}

Console StandardConsole() {
  Console console{.in = std::cin, .out = std::cout, .err = std::cerr};
  console.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  console.err_is_terminal = isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    console.columns = size.ws_col;
  return console;
}

}  // namespace ringfill::cli
