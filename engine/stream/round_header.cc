#include "engine/stream/round_header.h"

#include "absl/strings/str_cat.h"

namespace ringfill {
namespace {

absl::Status Mismatch(const char* field, uint64_t expected, uint64_t got) {
  return absl::DataLossError(
      absl::StrCat("ring buffer refused: ", field, " is ", got, ", expected ", expected));
}

}  // namespace

absl::Status CheckRoundHeader(const RoundHeader& expected, const RoundHeader& got) {
  const struct {
    const char* name;
    uint64_t expected, got;
  } fields[] = {
      {"magic", expected.magic, got.magic},    {"version", expected.version, got.version},
      {"epoch", expected.epoch, got.epoch},    {"step", expected.step, got.step},
      {"layer", expected.layer, got.layer},    {"round", expected.round, got.round},
      {"source", expected.source, got.source}, {"kind", expected.kind, got.kind},
      {"bytes", expected.bytes, got.bytes},
  };
  for (const auto& field : fields) {
    if (field.expected != field.got) return Mismatch(field.name, field.expected, field.got);
  }
  return absl::OkStatus();
}

}  // namespace ringfill
