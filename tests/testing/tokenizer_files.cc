#include "tests/testing/tokenizer_files.h"

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tests/testing/gguf_writer.h"

namespace ringfill {

std::vector<std::byte> CopyTokenizer(const GgufFile& file, const std::string& pre_tokenizer) {
  GgufWriter writer;
  const auto copy_string = [&](const char* key) {
    const auto value = file.GetString(key);
    RF_CHECK(value.ok());
    writer.AddString(key, *value);
  };
  const auto copy_strings = [&](const char* key) {
    const auto values = file.GetStrings(key);
    RF_CHECK(values.ok());
    writer.AddStrings(key, {values->begin(), values->end()});
  };
  copy_string("tokenizer.ggml.model");
  if (pre_tokenizer.empty()) {
    copy_string("tokenizer.ggml.pre");
  } else {
    writer.AddString("tokenizer.ggml.pre", pre_tokenizer);
  }
  copy_strings("tokenizer.ggml.tokens");
  copy_strings("tokenizer.ggml.merges");
  const auto types = file.GetInts("tokenizer.ggml.token_type");
  RF_CHECK(types.ok());
  writer.AddInts("tokenizer.ggml.token_type", {types->begin(), types->end()});
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    const auto id = file.GetUint(key);
    RF_CHECK(id.ok());
    writer.AddUint32(key, static_cast<uint32_t>(*id));
  }
  return writer.Build();
}

}  // namespace ringfill
