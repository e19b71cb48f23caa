// Writes a random Llama model of any geometry as a GGUF file, so that long prompts can be run in
// seconds and odd shapes at all.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "base/status.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {

// INVALID_ARGUMENT when the geometry fits no model; UNAVAILABLE when the file cannot be written,
// which then is not there. The same options give the same bytes. Takes as much memory as the file.
absl::Status MakeModel(const TinyModelOptions& options, const std::string& path);

// The program: 0, 1 when the model cannot be made, 2 for bad usage. `arguments` is without the
// program's name.
int RunMakeModel(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

}  // namespace ringfill
