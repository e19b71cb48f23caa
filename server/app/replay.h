// `ringfilld replay`: runs the steps of a plan log again and compares the results.
#pragma once

namespace ringfill {

// `argv[0]` is "replay". Returns the exit code.
int RunReplay(int argc, const char* const* argv);

}  // namespace ringfill
