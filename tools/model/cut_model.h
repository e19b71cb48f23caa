// Copies the first layers of a GGUF model, with its embedding, output head and tokenizer, into a
// smaller model that runs as the original does up to there.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"

namespace ringfill {

// Loads both models to check them, and compares every tensor of the copy with the original's.
// INVALID_ARGUMENT for a file that we do not read, or more layers than it has; UNAVAILABLE when the
// copy cannot be written. The copy appears whole or not at all; the original is mapped, not read
// into memory.
absl::Status CutModel(const std::string& path, int layers, const std::string& copy);

// The program: 0, 1 when the model cannot be cut, 2 for bad usage. `arguments` is without the
// program's name.
int RunCutModel(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

}  // namespace ringfill
