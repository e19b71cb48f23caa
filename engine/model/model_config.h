// Reads a Llama model's geometry from GGUF metadata.
#pragma once

#include "base/status.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"

namespace ringfill {

// Everything but rope.factors, which lie in a tensor. Every number is checked against sane bounds,
// so that products of the config's fields do not overflow. What would change the model's function
// and is not supported (experts, sliding windows, other RoPE scalings, ...) is refused by name.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace ringfill
