#include "engine/model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ringfill {
namespace {

// Unicode's White_Space, inside a class. PCRE2's own \s takes U+180E too, which no vocabulary was
// trained with.
constexpr const char* kSpaces = R"(\x{09}-\x{0d} \x{85}\x{a0}\x{1680}\x{2000}-\x{200a})"
                                R"(\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// A run of spaces but for the last one before a character not in `not_before`; else all of it.
std::string SpaceRuns(const std::string& not_before) {
  return absl::StrCat("[", kSpaces, "]+(?![^", kSpaces, not_before, "])|[", kSpaces, "]+");
}

std::string Gpt2Pattern() {
  return absl::StrCat(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)", kSpaces,
                      R"(\p{L}\p{N}]+|)", SpaceRuns(""));
}

// Digits are cut out one by one before the GPT-2 expression sees what lies between them: so spaces
// before a digit are spaces at the end of a text.
std::string SmollmPattern() {
  return absl::StrCat(R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^)", kSpaces, R"(\p{L}\p{N}]+|)",
                      SpaceRuns(R"(\p{N})"));
}

std::string Llama3Pattern(const char* digits) {
  return absl::StrCat(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)", digits, "| ?[^",
                      kSpaces, R"(\p{L}\p{N}]+[\r\n]*|[)", kSpaces, R"(]*[\r\n]+|)", SpaceRuns(""));
}

// Every character is matched by one alternative, so that no text is left between words.
std::string PatternOf(PreTokenizerKind kind) {
  switch (kind) {
    case PreTokenizerKind::kGpt2:
      return Gpt2Pattern();
    case PreTokenizerKind::kSmollm:
      return SmollmPattern();
    case PreTokenizerKind::kLlama3:
      return Llama3Pattern(R"(\p{N}{1,3})");
    case PreTokenizerKind::kQwen2:
      return Llama3Pattern(R"(\p{N})");
  }
  RF_CHECK(false);
}

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return absl::StrCat("code ", code);
  return reinterpret_cast<const char*>(text);
}

int CountStep(pcre2_callout_block*, void* steps) {
  ++*static_cast<uint64_t*>(steps);
  return 0;
}

// Matching steps that one word may take: a few for each byte that is left.
uint32_t StepLimit(size_t bytes_left) {
  constexpr size_t kBase = 10000, kPerByte = 8;
  return static_cast<uint32_t>(
      std::min<size_t>(kBase + kPerByte * bytes_left, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

struct PreTokenizer::Impl {
  pcre2_code* code = nullptr;
  bool count_steps = false;
  ~Impl() { pcre2_code_free(code); }
};

PreTokenizer::PreTokenizer() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(PreTokenizerKind kind,
                                                                   const Options& options) {
  std::unique_ptr<PreTokenizer> made(new PreTokenizer());
  Impl& impl = *made->impl_;
  impl.count_steps = options.count_steps;
  uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED;
  if (options.count_steps) flags |= PCRE2_AUTO_CALLOUT;
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string pattern = PatternOf(kind);
  impl.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), flags,
                            &error, &offset, nullptr);
  if (impl.code == nullptr) {
    return absl::InternalError(
        absl::StrCat("PCRE2 refuses the pre-tokenizer at ", offset, ": ", ErrorText(error)));
  }
  // Without a compiled form PCRE2 interprets: slower, the same words.
  if (options.jit) (void)pcre2_jit_compile(impl.code, PCRE2_JIT_COMPLETE);
  return made;
}

struct WordScan::Impl {
  const pcre2_code* code;
  pcre2_match_data* match_data;
  pcre2_match_context* context;
  std::string_view text;
  size_t position = 0;
  uint64_t steps = 0;
};

WordScan::WordScan(const PreTokenizer& pre_tokenizer) : impl_(std::make_unique<Impl>()) {
  impl_->code = pre_tokenizer.impl_->code;
  impl_->match_data = pcre2_match_data_create(1, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  RF_CHECK(impl_->match_data != nullptr && impl_->context != nullptr);
  if (pre_tokenizer.impl_->count_steps) {
    pcre2_set_callout(impl_->context, CountStep, &impl_->steps);
  }
}

WordScan::~WordScan() {
  pcre2_match_data_free(impl_->match_data);
  pcre2_match_context_free(impl_->context);
}

void WordScan::Start(std::string_view text) {
  impl_->text = text;
  impl_->position = 0;
}

absl::StatusOr<std::string_view> WordScan::Next() {
  const std::string_view text = impl_->text;
  const size_t begin = impl_->position;
  if (begin == text.size()) return std::string_view();
  pcre2_set_match_limit(impl_->context, StepLimit(text.size() - begin));
  const auto match = [&](uint32_t flags) {
    return pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                       PCRE2_NO_UTF_CHECK | flags, impl_->match_data, impl_->context);
  };
  int result = match(0);
  // The compiled form has a stack of 32 KiB, the interpreter a heap.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result < 0) {
    return absl::InternalError(
        absl::StrCat("the pre-tokenizer gave up at byte ", begin, ": ", ErrorText(result)));
  }
  const size_t end = pcre2_get_ovector_pointer(impl_->match_data)[1];
  RF_CHECK(end > begin && end <= text.size());
  impl_->position = end;
  return text.substr(begin, end - begin);
}

uint64_t WordScan::steps() const { return impl_->steps; }

}  // namespace ringfill
