// What ringfilld exits with; scripts rely on these.
#pragma once

namespace ringfill {

inline constexpr int kExitOk = 0;       // stopped by SIGTERM or SIGINT, or nothing to serve
inline constexpr int kExitConfig = 2;   // bad usage or configuration, address in use
inline constexpr int kExitModel = 3;    // the model cannot be loaded
inline constexpr int kExitDiffers = 1;  // of ringfilld replay: other results than the log has
// Of ringfilld worker.
inline constexpr int kExitRefused = 4;     // it does not fit its leader; of replay: its log
inline constexpr int kExitLeaderGone = 5;  // the leader is gone, or was never reached
inline constexpr int kExitDeviceLost = 6;  // its GPU fails every call; another process may use it

}  // namespace ringfill
