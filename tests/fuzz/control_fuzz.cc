// What leader and worker say to each other. The first byte is the message's number.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "engine/worker/control_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  if (size == 0) return 0;
  const std::span<const std::byte> payload(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const absl::StatusOr<ControlMessage> message = DecodeControl(data[0], payload);
  if (!message.ok()) return 0;
  // Of another version only the number is kept.
  const auto* join = std::get_if<JoinMessage>(&*message);
  const bool foreign = join != nullptr && join->version != kControlVersion;
  const EncodedControl again = EncodeControl(*message);
  RF_CHECK(again.type == data[0]);
  if (!foreign) {
    RF_CHECK(again.payload.size() == payload.size());
    RF_CHECK(std::equal(payload.begin(), payload.end(),
                        reinterpret_cast<const std::byte*>(again.payload.data())));
  }
  if (const auto* measured = std::get_if<MeasuredMessage>(&*message)) {
    const absl::StatusOr<Figures> figures = FiguresFromNumbers(measured->figures, 2);
    if (figures.ok()) RF_CHECK(FiguresToNumbers(*figures).size() == measured->figures.size());
  }
  return 0;
}
