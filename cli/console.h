// Where a command reads and writes. Tests give string streams; the program gives the standard ones.
#pragma once

#include <istream>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace ringfill::cli {

// Not thread-safe. The streams outlive it.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  int columns = 80;  // of the terminal

  // "ringfill: RESOURCE_EXHAUSTED: message" on err, and when to try again where the status says so.
  void PrintError(const absl::Status& status);
  // "ringfill: message" on err.
  void PrintNote(const std::string& message);
  // Flushes out. False, with a note on err, when what was written did not arrive (a full disk).
  bool FlushOut();
};

// On std::cin, std::cout and std::cerr, with what the system says of the terminal.
Console StandardConsole();

}  // namespace ringfill::cli
