#include "engine/model/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/model/bpe.h"
#include "engine/model/pre_tokenizer.h"
#include "engine/model/quote.h"
#include "engine/model/utf8.h"
#include "engine/model/vocabulary.h"

namespace ringfill {
namespace {

struct PreTokenizerName {
  std::string_view stored;
  std::string_view name;
  PreTokenizerKind kind;
  bool words_before_merges;  // a word that is a token is taken whole, whatever the merges give
};

constexpr std::array kPreTokenizers = {
    PreTokenizerName{"smollm", "smollm", PreTokenizerKind::kSmollm, false},
    PreTokenizerName{"llama-bpe", "llama-bpe", PreTokenizerKind::kLlama3, true},
    PreTokenizerName{"llama3", "llama-bpe", PreTokenizerKind::kLlama3, true},
    PreTokenizerName{"llama-v3", "llama-bpe", PreTokenizerKind::kLlama3, true},
    PreTokenizerName{"qwen2", "qwen2", PreTokenizerKind::kQwen2, false},
    PreTokenizerName{"default", "default", PreTokenizerKind::kGpt2, false},
    PreTokenizerName{"gpt-2", "default", PreTokenizerKind::kGpt2, false},
};

// Control tokens that end a turn, by their text in the vocabularies that have them.
constexpr std::array<std::string_view, 4> kEndOfTurn = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>",
                                                        "<|endoftext|>"};

absl::StatusOr<PreTokenizerName> ReadPreTokenizer(const GgufFile& file) {
  RF_ASSIGN_OR_RETURN(const std::string_view stored,
                      file.GetString("tokenizer.ggml.pre", "default"));
  std::string supported;
  for (const PreTokenizerName& known : kPreTokenizers) {
    if (known.stored == stored) return known;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", std::string(known.stored));
  }
  return file.Error(
      absl::StrCat("tokenizer.ggml.pre is ", Printable(stored), "; supported: ", supported));
}

absl::StatusOr<std::optional<TokenId>> ReadId(const GgufFile& file, std::string_view key,
                                              size_t vocab) {
  if (file.FindValue(key) == nullptr) return std::optional<TokenId>();
  RF_ASSIGN_OR_RETURN(const uint64_t id, file.GetUint(key));
  if (id < vocab) return std::optional<TokenId>(static_cast<TokenId>(id));
  return file.Error(
      absl::StrCat(Printable(key), " is ", id, ", but the vocabulary has ", vocab, " tokens"));
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  PreTokenizerName pre;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::optional<TokenId> bos, eos;
  std::vector<TokenId> stop_ids;

  void AddStop(std::optional<TokenId> id) {
    if (id && std::find(stop_ids.begin(), stop_ids.end(), *id) == stop_ids.end()) {
      stop_ids.push_back(*id);
    }
  }
};

namespace {

// One encoding in progress: the scratch that its words share.
class Encoder {
 public:
  Encoder(const Vocabulary& vocabulary, const PreTokenizer& pre_tokenizer, bool words_before_merges,
          std::vector<TokenId>& out)
      : vocabulary_(vocabulary),
        words_before_merges_(words_before_merges),
        scan_(pre_tokenizer),
        merger_(vocabulary.merges()),
        out_(out) {}

  // Text without special tokens. Bytes outside of valid UTF-8 are words of their own.
  absl::Status AddText(std::string_view text) {
    while (!text.empty()) {
      const size_t valid = ValidUtf8Prefix(text);
      scan_.Start(text.substr(0, valid));
      while (true) {
        RF_ASSIGN_OR_RETURN(const std::string_view word, scan_.Next());
        if (word.empty()) break;
        AddWord(word);
      }
      text.remove_prefix(valid);
      if (!text.empty()) {
        AddWord(text.substr(0, 1));
        text.remove_prefix(1);
      }
    }
    return absl::OkStatus();
  }

 private:
  void AddWord(std::string_view word) {
    if (words_before_merges_) {
      if (const std::optional<TokenId> id = vocabulary_.FindWord(word)) {
        out_.push_back(*id);
        return;
      }
    }
    symbols_.clear();
    for (char byte : word) {
      symbols_.push_back(vocabulary_.byte_token(static_cast<unsigned char>(byte)));
    }
    merger_.Append(symbols_, out_);
  }

  const Vocabulary& vocabulary_;
  const bool words_before_merges_;
  WordScan scan_;
  BpeMerger merger_;
  std::vector<int32_t> symbols_;
  std::vector<TokenId>& out_;
};

}  // namespace

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  RF_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return file.Error(
        absl::StrCat("tokenizer.ggml.model is ", Printable(model), "; supported: gpt2"));
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  Impl& impl = *tokenizer->impl_;
  RF_ASSIGN_OR_RETURN(impl.pre, ReadPreTokenizer(file));
  RF_RETURN_IF_ERROR(impl.vocabulary.Read(file));
  RF_ASSIGN_OR_RETURN(impl.pre_tokenizer, PreTokenizer::Create(impl.pre.kind));
  const size_t vocab = impl.vocabulary.size();
  RF_ASSIGN_OR_RETURN(impl.bos, ReadId(file, "tokenizer.ggml.bos_token_id", vocab));
  RF_ASSIGN_OR_RETURN(impl.eos, ReadId(file, "tokenizer.ggml.eos_token_id", vocab));
  RF_ASSIGN_OR_RETURN(const std::optional<TokenId> end_of_turn,
                      ReadId(file, "tokenizer.ggml.eot_token_id", vocab));
  impl.AddStop(impl.eos);
  impl.AddStop(end_of_turn);
  for (std::string_view text : kEndOfTurn) {
    const std::optional<TokenId> id = impl.vocabulary.FindSpecial(text);
    if (id && impl.vocabulary.kind(*id) == TokenKind::kControl) impl.AddStop(id);
  }
  return tokenizer;
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                                       const TokenizeOptions& options) const {
  const TextPiece piece{text, options.parse_special};
  return EncodePieces({&piece, 1});
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::EncodePieces(
    std::span<const TextPiece> pieces) const {
  size_t total = 0;
  for (const TextPiece& piece : pieces) {
    if (piece.text.size() > kMaxTextBytes - total) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text is longer than ", kMaxTextBytes, " bytes"));
    }
    total += piece.text.size();
  }
  std::vector<TokenId> ids;
  Encoder encoder(impl_->vocabulary, *impl_->pre_tokenizer, impl_->pre.words_before_merges, ids);
  const SpecialTokens& specials = impl_->vocabulary.specials();
  std::string pending;  // ordinary text of earlier pieces that the next may continue
  for (const TextPiece& piece : pieces) {
    std::string_view text = piece.text;
    while (true) {
      const SpecialTokens::Match match = specials.Find(text, 0, piece.parse_special);
      if (match.length == 0) break;
      const std::string_view before = text.substr(0, match.begin);
      if (pending.empty()) {
        RF_RETURN_IF_ERROR(encoder.AddText(before));
      } else {
        RF_RETURN_IF_ERROR(encoder.AddText(pending.append(before)));
        pending.clear();
      }
      ids.push_back(match.id);
      text.remove_prefix(match.begin + match.length);
    }
    if (pieces.size() == 1) {
      RF_RETURN_IF_ERROR(encoder.AddText(text));
    } else {
      pending.append(text);
    }
  }
  RF_RETURN_IF_ERROR(encoder.AddText(pending));
  return ids;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  RF_CHECK(id >= 0 && static_cast<size_t>(id) < impl_->vocabulary.size());
  return impl_->vocabulary.bytes(id);
}

bool Tokenizer::IsSpecial(TokenId id) const {
  RF_CHECK(id >= 0 && static_cast<size_t>(id) < impl_->vocabulary.size());
  const TokenKind kind = impl_->vocabulary.kind(id);
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string text;
  for (TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) text += TokenBytes(id);
  }
  return text;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->vocabulary.size()); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
const std::vector<TokenId>& Tokenizer::stop_ids() const { return impl_->stop_ids; }
std::string_view Tokenizer::pre_tokenizer() const { return impl_->pre.name; }

std::optional<TokenId> Tokenizer::FindToken(std::string_view text) const {
  if (const std::optional<TokenId> id = impl_->vocabulary.FindSpecial(text)) return id;
  return impl_->vocabulary.FindWord(text);
}

}  // namespace ringfill
