// The model with its tokenizer and chat template, as the daemon serves them.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/model/chat_template.h"
#include "engine/model/model.h"
#include "engine/model/tokenizer.h"

namespace ringfill {

struct ServedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  absl::StatusOr<ChatTemplate> chat;  // or why chat prompts are refused
};

// An error names the file, the field and what is supported.
absl::StatusOr<ServedModel> LoadServedModel(const std::string& path);

}  // namespace ringfill
