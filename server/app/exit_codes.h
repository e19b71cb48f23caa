// What ringfilld exits with; scripts rely on these.
#pragma once

namespace ringfill {

inline constexpr int kExitOk = 0;      // stopped by SIGTERM or SIGINT, or nothing to serve
inline constexpr int kExitConfig = 2;  // bad usage or configuration, address in use
inline constexpr int kExitModel = 3;   // the model cannot be loaded
// Of ringfilld worker.
inline constexpr int kExitRefused = 4;     // it does not fit its leader
inline constexpr int kExitLeaderGone = 5;  // the leader is gone, or was never reached

}  // namespace ringfill
