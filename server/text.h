// Joins pieces of text and numbers. Debian's Abseil has a string view type of its own, which
// absl::StrCat takes and std::string_view does not convert to.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ringfill {

inline absl::string_view AbslPiece(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdPiece(absl::string_view text) { return {text.data(), text.size()}; }

namespace text_internal {
inline absl::string_view Piece(std::string_view text) { return AbslPiece(text); }
template <typename T>
const T& Piece(const T& value) {
  return value;
}
}  // namespace text_internal

// As absl::StrCat: strings, string views, numbers.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return absl::StrCat(text_internal::Piece(parts)...);
}

}  // namespace ringfill
