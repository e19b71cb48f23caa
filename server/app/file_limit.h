// How many files and connections the process may have open.
#pragma once

#include <cstdint>

namespace ringfill {

// With fewer, a burst of clients can use them up. The gRPC server stops accepting for good when
// that happens: it does not try again after EMFILE.
inline constexpr uint64_t kEnoughFiles = 4096;
inline constexpr uint64_t kMostFiles = 65536;

// Raises the soft limit to the hard one, to at most kMostFiles; never lowers it. Returns the limit
// that holds then. Logs a warning when it is below kEnoughFiles.
uint64_t RaiseFileLimit();

// /dev/null for those of the descriptors 0 to 2 that are closed, so that nothing that is opened
// later takes their place and is written to. REQUIRES: no other thread yet.
void FillStandardFiles();

}  // namespace ringfill
