// ringfilld worker: one rank as a process of its own.
#pragma once

namespace ringfill {

// From its command line (without "ringfilld") to its exit code: see exit_codes.h.
int RunWorker(int argc, const char* const* argv);

}  // namespace ringfill
