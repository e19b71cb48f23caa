// Models and tokenizers of test files; the test process ends with a message when one does not load.
#pragma once

#include <memory>
#include <string>

#include "engine/model/model.h"
#include "engine/model/tokenizer.h"

namespace ringfill {

std::shared_ptr<const Model> LoadModelOrDie(const std::string& path);
std::shared_ptr<const Tokenizer> LoadTokenizerOrDie(const Model& model);

}  // namespace ringfill
