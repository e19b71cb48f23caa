// Any bytes as a text: they come back from their tokens, whole, in pieces and as a stream. The
// first two bytes choose the pre-tokenizer, whether special tokens are parsed, and where to cut.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/model/tokenizer.h"
#include "engine/model/utf8.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

constexpr std::array kPreTokenizers = {"smollm", "llama-bpe", "qwen2", "default"};

std::unique_ptr<Tokenizer> MakeTokenizer(const char* pre_tokenizer) {
  TinyModelOptions options;
  options.pre_tokenizer = pre_tokenizer;
  GgufWriter writer;
  AddTinyTokenizer(options, writer);
  const std::vector<std::byte> bytes = writer.Build();
  const auto file = GgufFile::Parse(bytes, "tiny");
  RF_CHECK(file.ok());
  auto tokenizer = Tokenizer::FromGguf(**file);
  RF_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamingDetokenizer stream(tokenizer);
  std::string streamed;
  for (TokenId id : ids) streamed += stream.Push(id);
  streamed += stream.Flush();
  std::string bytes = tokenizer.Decode(ids, true);
  std::string whole = TakeCompleteUtf8(bytes);
  if (!bytes.empty()) whole += "\xef\xbf\xbd";
  RF_CHECK(streamed == whole);
  RF_CHECK(ValidUtf8Prefix(whole) == whole.size());
}

void CheckText(const Tokenizer& tokenizer, std::string_view text, bool special, size_t cut) {
  const auto ids = tokenizer.Encode(text, {special});
  RF_CHECK(ids.ok());
  RF_CHECK(tokenizer.Decode(*ids, false) == text);
  CheckStream(tokenizer, *ids);
  const std::array<TextPiece, 2> pieces = {TextPiece{text.substr(0, cut), special},
                                           TextPiece{text.substr(cut), special}};
  const auto piece_ids = tokenizer.EncodePieces(pieces);
  RF_CHECK(piece_ids.ok());
  RF_CHECK(tokenizer.Decode(*piece_ids, false) == text);
  // Without special tokens the joined text is one text.
  RF_CHECK(special || *piece_ids == *ids);
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ringfill::kPreTokenizers;
  static const std::array tokenizers = {
      ringfill::MakeTokenizer(kPreTokenizers[0]), ringfill::MakeTokenizer(kPreTokenizers[1]),
      ringfill::MakeTokenizer(kPreTokenizers[2]), ringfill::MakeTokenizer(kPreTokenizers[3])};
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t cut = text.empty() ? 0 : data[1] % (text.size() + 1);
  ringfill::CheckText(*tokenizers[data[0] % 4], text, (data[0] & 4) != 0, cut);
  return 0;
}
