// From prompt flags to a wire prompt: reads the file or standard input, repairs its UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "cli/options.h"
#include "ringfill/v1/ringfill.pb.h"

namespace ringfill::cli {

// A protobuf message holds less than 2 GiB.
inline constexpr size_t kMaxPromptBytes = size_t{1} << 30;

// Whole contents; "-" reads console.in. INVALID_ARGUMENT with the path when it cannot be read or is
// larger than kMaxPromptBytes.
absl::StatusOr<std::string> ReadInput(const std::string& path, Console& console);

// A JSON array of token ids, or an object with `token_ids` (what `ringfill tokenize --json` and
// `ringfill generate --json` print). INVALID_ARGUMENT says which entry is wrong.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view json);

// INVALID_ARGUMENT is a mistake of the command line or its files (exit code 2). Bytes that are not
// UTF-8 are replaced, with a note on console.err.
absl::StatusOr<v1::Prompt> BuildPrompt(const PromptOptions& options, Console& console);

// `what` names the text in the note ("--stop", "the prompt file").
std::string ValidUtf8(std::string_view text, const std::string& what, Console& console);

}  // namespace ringfill::cli
