#include "engine/model/utf8.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace ringfill {
namespace {

// What a lead byte asks for: Unicode 15, table 3-7 (well-formed byte sequences).
struct Lead {
  uint8_t length;     // 0: never starts a character
  uint8_t low, high;  // bounds of the second byte
};

constexpr Lead LeadOf(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xc2) return {0, 0, 0};
  if (b < 0xe0) return {2, 0x80, 0xbf};
  if (b == 0xe0) return {3, 0xa0, 0xbf};
  if (b == 0xed) return {3, 0x80, 0x9f};
  if (b < 0xf0) return {3, 0x80, 0xbf};
  if (b == 0xf0) return {4, 0x90, 0xbf};
  if (b < 0xf4) return {4, 0x80, 0xbf};
  if (b == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  RF_DCHECK(!text.empty());
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  if (lead.length == 0) return {Utf8Step::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::kIncomplete, i};
    const auto b = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xbf;
    if (b < low || b > high) return {Utf8Step::kInvalid, i};
  }
  return {Utf8Step::kValid, lead.length};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time.
    uint64_t word;
    if (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const Utf8Step step = NextUtf8(text.substr(at));
    if (step.kind != Utf8Step::kValid) break;
    at += step.length;
  }
  return at;
}

}  // namespace ringfill
