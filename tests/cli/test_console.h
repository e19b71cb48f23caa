// A console on strings.
#pragma once

#include <sstream>

#include "cli/console.h"

namespace ringfill::cli {

struct TestConsole {
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Console console{.in = in, .out = out, .err = err};
};

}  // namespace ringfill::cli
