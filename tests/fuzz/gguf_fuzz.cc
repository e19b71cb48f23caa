// Any bytes as a model file: an error, or a model whose tokenizer works and whose weights lie
// within the bytes.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/model/chat_template.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"

namespace ringfill {
namespace {

void UseTokenizer(const GgufFile& file) {
  const auto tokenizer = Tokenizer::FromGguf(file);
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode("Hello <|im_start|>wor\xff 12\n\n  x", {true});
  RF_CHECK(ids.ok());
  (*tokenizer)->Decode(*ids, true);
  for (TokenId id : *ids) RF_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
}

void UseTemplate(const GgufFile& file) {
  const auto jinja = file.GetString("tokenizer.chat_template");
  if (!jinja.ok()) return;
  const auto chat = ChatTemplate::Recognise(*jinja);
  if (chat.ok()) chat->Render({{"user", "x"}}).IgnoreError();
}

// The last weight of each matrix is read, so that the sanitizer sees any that lies outside.
void UseWeights(const Model& model) {
  const auto use = [](const WeightMatrix& w) {
    std::vector<float> row(static_cast<size_t>(w.cols));
    DequantizeRow(w.type, w.Row(w.rows - 1), w.cols, row.data());
  };
  use(model.embedding());
  use(model.output());
  for (const LayerWeights& layer : model.layers()) {
    for (const WeightMatrix* w :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      use(*w);
    }
  }
}

}  // namespace
}  // namespace ringfill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = ringfill::GgufFile::Parse({reinterpret_cast<const std::byte*>(data), size}, "x.gguf");
  if (!file.ok()) return 0;
  ringfill::UseTokenizer(**file);
  ringfill::UseTemplate(**file);
  const auto model = ringfill::Model::FromGguf(*std::move(file));
  if (model.ok()) ringfill::UseWeights(**model);
  return 0;
}
