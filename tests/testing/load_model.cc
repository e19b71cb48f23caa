#include "tests/testing/load_model.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace ringfill {

std::shared_ptr<const Model> LoadModelOrDie(const std::string& path) {
  auto model = Model::Load(path);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    std::abort();
  }
  return *std::move(model);
}

std::shared_ptr<const Tokenizer> LoadTokenizerOrDie(const Model& model) {
  auto tokenizer = Tokenizer::FromGguf(model.file());
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    std::abort();
  }
  return *std::move(tokenizer);
}

}  // namespace ringfill
