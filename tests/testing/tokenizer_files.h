// Tokenizers without a model around them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/model/gguf_file.h"

namespace ringfill {

// A GGUF file with the vocabulary and merges of `file` and another tokenizer.ggml.pre (the same
// when empty), without tensors. REQUIRES: `file` has a tokenizer.
std::vector<std::byte> CopyTokenizer(const GgufFile& file, const std::string& pre_tokenizer);

}  // namespace ringfill
