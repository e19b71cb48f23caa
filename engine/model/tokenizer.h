// Byte-level BPE from a GGUF file (tokenizer.ggml.model = "gpt2"), with the pre-tokenizer that
// tokenizer.ggml.pre names. Time is linear (times a logarithm) in the text, also on hostile text
// such as one megabyte without a space.
//
// Source of the algorithm: Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units" (2016), over bytes as in GPT-2; merges through a priority queue over a linked list.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/model/gguf_file.h"
#include "engine/model/token_id.h"

namespace ringfill {

struct TokenizeOptions {
  // Recognise special (control) tokens written out in the text. Off for untrusted text.
  bool parse_special = false;
};

struct TextPiece {
  std::string_view text;
  bool parse_special = false;
};

// Immutable after loading; thread-safe.
class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;

  // INVALID_ARGUMENT naming the file and key; unknown models and pre-tokenizers are refused with
  // the supported ones listed.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  ~Tokenizer();

  // Any bytes are accepted: invalid UTF-8 is tokenized byte by byte. No BOS or EOS is added. Bytes
  // for which the vocabulary has no token (SmolLM2 lacks some control characters, and bytes that
  // never occur in UTF-8) are left out. INVALID_ARGUMENT past kMaxTextBytes.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              const TokenizeOptions& options) const;
  // A text in pieces, special tokens recognised within the pieces that ask for them. The ids are
  // those of the joined text (words may cross from piece to piece), but no special token is ever
  // seen in, or across the edge of, a piece that does not ask.
  absl::StatusOr<std::vector<TokenId>> EncodePieces(std::span<const TextPiece> pieces) const;

  // The bytes that a token stands for (special tokens: their text). Empty for ids that the
  // vocabulary leaves unused. REQUIRES: 0 <= id < vocab_size().
  std::string_view TokenBytes(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  // The concatenated bytes; may be invalid UTF-8 at its ends. Special tokens are left out on
  // request. REQUIRES: ids in range.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  int64_t vocab_size() const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  // Ids that end a generation: EOS and the end-of-turn tokens of the vocabulary (<|im_end|>,
  // <|eot_id|>, <|eom_id|>, <|endoftext|> where they are control tokens).
  const std::vector<TokenId>& stop_ids() const;
  // The id of a token by its exact text, special ones included.
  std::optional<TokenId> FindToken(std::string_view text) const;
  // "smollm", "llama-bpe", ...
  std::string_view pre_tokenizer() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of tokens into text, holding back incomplete UTF-8, so that no character is ever
// emitted in halves. Bytes that can never become valid UTF-8 come out as U+FFFD. Special tokens
// contribute nothing. Owned by one request; not thread-safe.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Text that became complete with `id`; may be empty. Always valid UTF-8.
  std::string Push(TokenId id);
  // What is still held back, as U+FFFD per maximal invalid part.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

// Longest prefix of `bytes` that is complete UTF-8, with invalid sequences replaced by U+FFFD
// (one per maximal invalid subpart, as the Unicode standard recommends); the incomplete rest (at
// most 3 bytes) stays in `bytes`.
std::string TakeCompleteUtf8(std::string& bytes);

}  // namespace ringfill
