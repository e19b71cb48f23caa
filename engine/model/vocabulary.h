// A byte-level BPE vocabulary read from GGUF metadata: the bytes and kinds of tokens, the merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "engine/model/bpe.h"
#include "engine/model/gguf_file.h"
#include "engine/model/special_tokens.h"

namespace ringfill {

// The values of tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Immutable after reading; thread-safe; owns copies of everything. Not movable: it points into
// itself.
class Vocabulary {
 public:
  static constexpr size_t kMaxTokens = 1 << 24;

  Vocabulary() = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // Fills an empty vocabulary. INVALID_ARGUMENT naming file and key.
  absl::Status Read(const GgufFile& file);

  size_t size() const { return kinds_.size(); }
  TokenKind kind(int32_t id) const { return kinds_[id]; }
  // Empty for unused tokens.
  std::string_view bytes(int32_t id) const {
    return std::string_view(text_).substr(begins_[id], begins_[id + 1] - begins_[id]);
  }
  // A token that stands for a single byte; -1 where the vocabulary has none.
  int32_t byte_token(unsigned char byte) const { return byte_tokens_[byte]; }
  // An ordinary token by its bytes.
  std::optional<int32_t> FindWord(std::string_view bytes) const;
  // Any other token by its text.
  std::optional<int32_t> FindSpecial(std::string_view text) const;

  const MergeTable& merges() const { return merges_; }
  const SpecialTokens& specials() const { return specials_; }

 private:
  absl::Status ReadKinds(const GgufFile& file, size_t tokens);
  absl::Status ReadTokens(const GgufFile& file, const std::vector<std::string_view>& symbols);
  absl::Status ReadMerges(const GgufFile& file, const std::vector<std::string_view>& symbols);

  std::vector<TokenKind> kinds_;
  std::string text_;                                        // bytes of all tokens in order
  std::vector<size_t> begins_;                              // [size + 1]
  absl::flat_hash_map<std::string_view, int32_t> words_;    // into text_
  absl::flat_hash_map<std::string_view, int32_t> by_text_;  // into text_
  std::array<int32_t, 256> byte_tokens_;
  MergeTable merges_;
  SpecialTokens specials_;
};

}  // namespace ringfill
