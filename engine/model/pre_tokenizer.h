// Cuts text into the words that byte-pair merging works on, by the regular expressions that
// vocabularies were trained with, run by PCRE2. Each takes \s as Unicode's White_Space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace ringfill {

enum class PreTokenizerKind { kGpt2, kSmollm, kLlama3, kQwen2 };

// Immutable after creation; thread-safe.
class PreTokenizer {
 public:
  struct Options {
    bool jit = true;           // use PCRE2's compiler where it works; the result is the same
    bool count_steps = false;  // for tests: makes WordScan::steps() count, slowly
  };
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(PreTokenizerKind kind,
                                                              const Options& options);
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(PreTokenizerKind kind) {
    return Create(kind, Options());
  }
  ~PreTokenizer();

 private:
  friend class WordScan;
  PreTokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Walks over texts word by word. PCRE2's memory is bounded, and its work is limited to a multiple
// of the text's length a word. Owned by one call; not thread-safe; outlived by its PreTokenizer.
class WordScan {
 public:
  explicit WordScan(const PreTokenizer& pre_tokenizer);
  ~WordScan();

  // Starts a text. REQUIRES: valid UTF-8.
  void Start(std::string_view text);
  // The next word, never empty; the words' concatenation is the text. Empty at its end. INTERNAL
  // when PCRE2 gives up.
  absl::StatusOr<std::string_view> Next();

  // Steps of the matcher other than running along a repeated class; 0 unless counted.
  uint64_t steps() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringfill
