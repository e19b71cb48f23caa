#include "server/app/served_model.h"

#include <optional>
#include <string>
#include <utility>

namespace ringfill {

absl::StatusOr<ServedModel> LoadServedModel(const std::string& path) {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(path));
  RF_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::FromGguf(model->file()));
  RF_ASSIGN_OR_RETURN(const std::string_view jinja,
                      model->file().GetString("tokenizer.chat_template", ""));
  std::string bos_text;
  if (const std::optional<TokenId> bos = tokenizer->bos()) bos_text = tokenizer->TokenBytes(*bos);
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Recognise(jinja, bos_text);
  return ServedModel{std::move(model), std::move(tokenizer), std::move(chat)};
}

}  // namespace ringfill
