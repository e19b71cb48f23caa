#include "cli/utf8.h"

#include <cstdint>

namespace ringfill::cli {
namespace {

struct Sequence {
  size_t bytes;  // at least 1
  bool valid;
};

// The length of the lead byte's sequence and the range of its second byte (table 3-7 of the Unicode
// Standard: no overlong forms, no surrogates, nothing above U+10FFFF). Length 0: no lead byte.
struct Lead {
  size_t length;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

Lead ClassifyLead(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

Sequence NextSequence(std::string_view bytes) {
  const Lead lead = ClassifyLead(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {1, false};
  for (size_t i = 1; i < lead.length; ++i) {
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xbf;
    if (i == bytes.size()) return {i, false};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    if (byte < low || byte > high) return {i, false};
  }
  return {lead.length, true};
}

}  // namespace

Utf8Repair RepairUtf8(std::string_view bytes) {
  Utf8Repair repair;
  repair.text.reserve(bytes.size());
  size_t offset = 0;
  while (offset < bytes.size()) {
    const Sequence sequence = NextSequence(bytes.substr(offset));
    if (sequence.valid) {
      repair.text.append(bytes.substr(offset, sequence.bytes));
    } else {
      if (repair.replacements++ == 0) repair.first_offset = offset;
      repair.text.append("\xef\xbf\xbd");
    }
    offset += sequence.bytes;
  }
  return repair;
}

}  // namespace ringfill::cli
