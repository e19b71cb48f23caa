#include "engine/model/vocabulary.h"

#include "absl/strings/str_cat.h"
#include "engine/model/byte_alphabet.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

using Lookup = absl::flat_hash_map<std::string_view, int32_t>;

std::optional<int32_t> FindIn(const Lookup& lookup, std::string_view text) {
  const auto found = lookup.find(text);
  if (found == lookup.end()) return std::nullopt;
  return found->second;
}

bool IsOrdinary(TokenKind kind) { return kind == TokenKind::kNormal || kind == TokenKind::kByte; }

}  // namespace

absl::Status Vocabulary::Read(const GgufFile& file) {
  RF_ASSIGN_OR_RETURN(const std::vector<std::string_view> symbols, file.GetStrings(kTokensKey));
  if (symbols.empty() || symbols.size() > kMaxTokens) {
    return file.Error(
        absl::StrCat(kTokensKey, " has ", symbols.size(), " tokens; supported: 1 to ", kMaxTokens));
  }
  RF_RETURN_IF_ERROR(ReadKinds(file, symbols.size()));
  RF_RETURN_IF_ERROR(ReadTokens(file, symbols));
  return ReadMerges(file, symbols);
}

absl::Status Vocabulary::ReadKinds(const GgufFile& file, size_t tokens) {
  kinds_.assign(tokens, TokenKind::kNormal);
  if (file.FindValue(kTypesKey) == nullptr) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.GetInts(kTypesKey));
  if (types.size() != tokens) {
    return file.Error(
        absl::StrCat(kTypesKey, " has ", types.size(), " entries for ", tokens, " tokens"));
  }
  for (size_t i = 0; i < tokens; ++i) {
    if (types[i] < static_cast<int64_t>(TokenKind::kNormal) ||
        types[i] > static_cast<int64_t>(TokenKind::kByte)) {
      return file.Error(
          absl::StrCat(kTypesKey, " of token ", i, " is ", types[i], "; supported: 1 to 6"));
    }
    kinds_[i] = static_cast<TokenKind>(types[i]);
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadTokens(const GgufFile& file,
                                    const std::vector<std::string_view>& symbols) {
  std::vector<bool> in_alphabet(symbols.size(), false);
  begins_.reserve(symbols.size() + 1);
  for (size_t i = 0; i < symbols.size(); ++i) {
    begins_.push_back(text_.size());
    if (kinds_[i] == TokenKind::kUnused) continue;
    in_alphabet[i] = IsOrdinary(kinds_[i]) && AppendAlphabetBytes(symbols[i], text_);
    if (!in_alphabet[i]) text_ += symbols[i];
  }
  begins_.push_back(text_.size());

  byte_tokens_.fill(-1);
  for (size_t i = 0; i < symbols.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view token = bytes(id);
    if (token.empty()) continue;
    if (in_alphabet[i]) {
      words_.try_emplace(token, id);
      int32_t& byte_token = byte_tokens_[static_cast<unsigned char>(token[0])];
      if (token.size() == 1 && byte_token < 0) byte_token = id;
      continue;
    }
    by_text_.try_emplace(token, id);
    if (IsOrdinary(kinds_[i])) continue;
    if (token.size() > SpecialTokens::kMaxBytes) {
      return file.Error(absl::StrCat("special token ", id, " is ", token.size(),
                                     " bytes long; supported: at most ", SpecialTokens::kMaxBytes));
    }
    specials_.Add(token, id, kinds_[i] == TokenKind::kUserDefined);
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadMerges(const GgufFile& file,
                                    const std::vector<std::string_view>& symbols) {
  Lookup by_symbols;
  for (size_t i = 0; i < symbols.size(); ++i) {
    const bool mergeable = IsOrdinary(kinds_[i]) || kinds_[i] == TokenKind::kUserDefined;
    if (mergeable) by_symbols.try_emplace(symbols[i], static_cast<int32_t>(i));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges, file.GetStrings(kMergesKey));
  merges_.Reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos) {
      return file.Error(absl::StrCat(kMergesKey, " entry ", i, " (", Printable(merges[i]),
                                     ") is not two symbols with a space between"));
    }
    const std::string_view left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    joined.assign(left).append(right);
    const std::optional<int32_t> left_id = FindIn(by_symbols, left);
    const std::optional<int32_t> right_id = FindIn(by_symbols, right);
    const std::optional<int32_t> merged_id = FindIn(by_symbols, joined);
    if (!left_id || !right_id || !merged_id) {
      return file.Error(absl::StrCat(kMergesKey, " entry ", i, " (", Printable(merges[i]),
                                     ") has a part or result that is not an ordinary token"));
    }
    merges_.Add(*left_id, *right_id, *merged_id);
  }
  return absl::OkStatus();
}

std::optional<int32_t> Vocabulary::FindWord(std::string_view bytes) const {
  return FindIn(words_, bytes);
}

std::optional<int32_t> Vocabulary::FindSpecial(std::string_view text) const {
  return FindIn(by_text_, text);
}

}  // namespace ringfill
