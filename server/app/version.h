#pragma once

namespace ringfill {

// The project's version, "0.1.0".
const char* Version();

}  // namespace ringfill
