#include "engine/model/quote.h"

#include "absl/strings/escaping.h"
#include "engine/model/utf8.h"

namespace ringfill {

std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  const bool cut = text.size() > kMaxBytes;
  std::string clean;
  text = text.substr(0, kMaxBytes);
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const std::string_view part = text.substr(0, step.length);
    if (step.kind == Utf8Step::kValid) {
      clean += absl::Utf8SafeCEscape({part.data(), part.size()});
    } else {
      clean += absl::CHexEscape({part.data(), part.size()});
    }
    text.remove_prefix(step.length);
  }
  return cut ? clean + "..." : clean;
}

}  // namespace ringfill
