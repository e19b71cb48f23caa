#include "server/trace/traceparent.h"

#include <algorithm>

namespace ringfill {
namespace {

// version "-" trace-id "-" parent-id "-" trace-flags
constexpr size_t kVersionAt = 0, kVersionChars = 2;
constexpr size_t kTraceAt = 3, kTraceChars = 32;
constexpr size_t kParentAt = 36, kParentChars = 16;
constexpr size_t kFlagsAt = 53, kFlagsChars = 2;
constexpr size_t kChars = kFlagsAt + kFlagsChars;
constexpr char kSampled = 1;

// Capital letters are not allowed.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return HexDigit(c) >= 0; });
}

bool IsZero(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '0'; });
}

}  // namespace

std::string Traceparent::Text() const {
  return "00-" + trace_id + "-" + parent_id + (sampled ? "-01" : "-00");
}

std::optional<Traceparent> ParseTraceparent(std::string_view text) {
  if (text.size() < kChars) return std::nullopt;
  const std::string_view version = text.substr(kVersionAt, kVersionChars);
  const std::string_view trace = text.substr(kTraceAt, kTraceChars);
  const std::string_view parent = text.substr(kParentAt, kParentChars);
  const std::string_view flags = text.substr(kFlagsAt, kFlagsChars);
  for (const size_t dash : {kTraceAt, kParentAt, kFlagsAt}) {
    if (text[dash - 1] != '-') return std::nullopt;
  }
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) return std::nullopt;
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return std::nullopt;
  if (text.size() > kChars && (version == "00" || text[kChars] != '-')) return std::nullopt;
  return Traceparent{std::string(trace), std::string(parent), (HexDigit(flags[1]) & kSampled) != 0};
}

}  // namespace ringfill
