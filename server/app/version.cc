#include "server/app/version.h"

namespace ringfill {

const char* Version() { return RINGFILL_VERSION; }

}  // namespace ringfill
