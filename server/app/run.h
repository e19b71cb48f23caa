// ringfilld from its command line to its exit code.
#pragma once

namespace ringfill {

// Options, logging, model, daemon, the ready line, a signal, the drain. See exit_codes.h.
int RunDaemon(int argc, const char* const* argv);

}  // namespace ringfill
