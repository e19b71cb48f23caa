// Any bytes as the header and as a record of a plan log: an error, or what encodes to the same
// bytes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/replay/plan_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto header = DecodeLogHeader(bytes); header.ok()) {
    RF_CHECK(EncodeLogHeader(*header) == bytes);
  } else {
    RF_CHECK(!header.status().message().empty());
  }
  if (const auto record = DecodeLogRecord(bytes); record.ok()) {
    RF_CHECK(EncodeLogRecord(*record) == bytes);
  } else {
    RF_CHECK(!record.status().message().empty());
  }
  return 0;
}
