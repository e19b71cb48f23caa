#include "cli/prompt_input.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/utf8.h"
#include "nlohmann/json.hpp"

namespace ringfill::cli {
namespace {

absl::StatusOr<std::string> ReadStream(std::istream& stream, const std::string& name) {
  constexpr size_t kBlock = size_t{1} << 16;
  std::string text;
  while (stream) {
    const size_t before = text.size();
    if (before > kMaxPromptBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is larger than ", kMaxPromptBytes, " bytes"));
    }
    text.resize(before + kBlock);
    stream.read(text.data() + before, kBlock);
    text.resize(before + static_cast<size_t>(stream.gcount()));
  }
  if (stream.bad()) return absl::InvalidArgumentError(absl::StrCat(name, " cannot be read"));
  return text;
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    if (error.byte > text.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("not JSON: it ends too early, after byte ", text.size()));
    }
    return absl::InvalidArgumentError(absl::StrCat("not JSON: syntax error at byte ", error.byte));
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("not JSON: it holds a number that is out of range");
  }
}

}  // namespace

absl::StatusOr<std::string> ReadInput(const std::string& path, Console& console) {
  if (path == "-") return ReadStream(console.in, "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (file.peek(); file.bad()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read (a folder?)"));
  }
  file.clear();
  return ReadStream(file, path);
}

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view json) {
  RF_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(json));
  const nlohmann::json* list = &root;
  if (root.is_object()) {
    const auto found = root.find("token_ids");
    if (found == root.end()) {
      return absl::InvalidArgumentError("the object has no token_ids");
    }
    list = &*found;
  }
  if (!list->is_array()) {
    return absl::InvalidArgumentError(
        "expected an array of token ids, or an object with token_ids");
  }
  std::vector<uint32_t> ids;
  ids.reserve(list->size());
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_number_unsigned() ||
        entry.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token_ids[", ids.size(), "] is no token id: ",
          entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 40)));
    }
    ids.push_back(entry.get<uint32_t>());
  }
  return ids;
}

std::string ValidUtf8(std::string_view text, const std::string& what, Console& console) {
  Utf8Repair repair = RepairUtf8(text);
  if (repair.replacements > 0) {
    console.PrintNote(absl::StrCat("warning: ", what, " is not valid UTF-8: ", repair.replacements,
                                   " invalid byte sequences replaced by U+FFFD, the first at byte ",
                                   repair.first_offset));
  }
  return std::move(repair.text);
}

absl::StatusOr<v1::Prompt> BuildPrompt(const PromptOptions& options, Console& console) {
  v1::Prompt prompt;
  prompt.mutable_document_starts()->Assign(options.document_starts.begin(),
                                           options.document_starts.end());
  if (options.token_ids_file) {
    RF_ASSIGN_OR_RETURN(const std::string json, ReadInput(*options.token_ids_file, console));
    absl::StatusOr<std::vector<uint32_t>> ids = ParseTokenIds(json);
    if (!ids.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(*options.token_ids_file, ": ", ids.status().message()));
    }
    prompt.mutable_token_ids()->mutable_ids()->Assign(ids->begin(), ids->end());
    return prompt;
  }
  std::string text;
  std::string what = "the prompt";
  if (options.file) {
    what = *options.file;
    RF_ASSIGN_OR_RETURN(text, ReadInput(*options.file, console));
  } else {
    text = options.text.value_or("");
  }
  text = ValidUtf8(text, what, console);
  if (!options.chat) {
    prompt.set_text(std::move(text));
    prompt.set_parse_special(options.special);
    return prompt;
  }
  if (options.system) {
    v1::ChatMessage& system = *prompt.mutable_chat()->add_messages();
    system.set_role("system");
    system.set_content(ValidUtf8(*options.system, "--system", console));
  }
  v1::ChatMessage& user = *prompt.mutable_chat()->add_messages();
  user.set_role("user");
  user.set_content(std::move(text));
  return prompt;
}

}  // namespace ringfill::cli
