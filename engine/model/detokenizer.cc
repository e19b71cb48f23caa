#include <string>
#include <string_view>
#include <utility>

#include "engine/model/tokenizer.h"
#include "engine/model/utf8.h"

namespace ringfill {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string TakeCompleteUtf8(std::string& bytes) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Step::kIncomplete) break;
    text += kReplacement;
    rest.remove_prefix(step.length);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

std::string StreamingDetokenizer::Push(TokenId id) {
  if (tokenizer_.IsSpecial(id)) return {};
  pending_ += tokenizer_.TokenBytes(id);
  return TakeCompleteUtf8(pending_);
}

std::string StreamingDetokenizer::Flush() {
  std::string text = TakeCompleteUtf8(pending_);
  // What an incomplete character leaves is one maximal subpart.
  if (!std::exchange(pending_, {}).empty()) text += kReplacement;
  return text;
}

}  // namespace ringfill
