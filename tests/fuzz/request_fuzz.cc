// The request path from wire bytes to the engine's door: parse, convert, validate. The first byte
// picks the message.
#include <memory>
#include <string_view>

#include "base/check.h"
#include "engine/request/request.h"
#include "ringfill/v1/ringfill.pb.h"
#include "server/rpc/convert.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

constexpr RequestLimits kLimits = {.vocab = 384, .max_context_tokens = 2000};

// A tokenizer with a few merges and a ChatML template, made once.
class Prompts {
 public:
  Prompts() : bytes_(BuildTinyModel(TinyModelOptions())) {
    file_ = GgufFile::Parse(bytes_, "tiny").value();
    tokenizer_ = Tokenizer::FromGguf(*file_).value();
    reader_ = std::make_unique<PromptReader>(
        *tokenizer_, ChatTemplate::Recognise(*file_->GetString("tokenizer.chat_template")),
        kLimits);
  }
  const PromptReader& reader() const { return *reader_; }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PromptReader> reader_;
};

// What the converter lets through is either fit for the engine or refused by its checks; either way
// the status can be sent.
void Check(const absl::StatusOr<Request>& request) {
  const absl::Status status = request.ok() ? ValidateRequest(*request, kLimits) : request.status();
  RF_CHECK(ToGrpcStatus(status).error_message().size() <= kMaxStatusBytes);
  if (!status.ok()) return;
  RF_CHECK(!request->id.empty() && request->id.size() <= kMaxRequestIdBytes);
  RF_CHECK(!request->prompt.empty());
  for (const TokenId id : request->prompt) RF_CHECK(id >= 0 && id < kLimits.vocab);
  RF_CHECK(request->sampling.temperature >= 0);
  int64_t last = -1;
  for (const int64_t start : request->document_starts) {
    RF_CHECK(start > last && start < static_cast<int64_t>(request->prompt.size()));
    last = start;
  }
}

void Tokenize(const v1::Prompt& prompt, const PromptReader& reader) {
  const absl::StatusOr<std::vector<TokenId>> ids = reader.Tokenize(prompt);
  if (ids.ok()) reader.tokenizer().Decode(*ids, false);
}

void Detokenize(const v1::DetokenizeRequest& request, const PromptReader& reader) {
  const auto ids = ToTokenIds(request.token_ids(), "token_ids", kLimits.vocab);
  if (ids.ok()) reader.tokenizer().Decode(*ids, request.skip_special());
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ringfill;
  static const Prompts* const prompts = new Prompts;
  if (size == 0) return 0;
  const int kind = data[0] % 4;
  const int length = static_cast<int>(size - 1);
  v1::GenerateRequest generate;
  v1::ScoreRequest score;
  v1::TokenizeRequest tokenize;
  v1::DetokenizeRequest detokenize;
  if (kind == 0 && generate.ParseFromArray(data + 1, length)) {
    Check(ToRequest(generate, prompts->reader()));
  } else if (kind == 1 && score.ParseFromArray(data + 1, length)) {
    Check(ToRequest(score, prompts->reader()));
  } else if (kind == 2 && tokenize.ParseFromArray(data + 1, length)) {
    Tokenize(tokenize.prompt(), prompts->reader());
  } else if (kind == 3 && detokenize.ParseFromArray(data + 1, length)) {
    Detokenize(detokenize, prompts->reader());
  }
  return 0;
}
