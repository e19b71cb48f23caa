#include "engine/model/chat_template.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/jinja_text.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string Trim(const std::string& text) { return std::string(absl::StripAsciiWhitespace(text)); }

// The default system message of a ChatML template: a literal that holds a whole system turn.
std::string ChatMlDefaultSystem(std::string_view jinja) {
  constexpr std::string_view kOpen = "<|im_start|>system\n", kClose = "<|im_end|>";
  for (const std::string& literal : JinjaLiterals(jinja)) {
    const size_t open = literal.find(kOpen);
    if (open == std::string::npos) continue;
    const size_t begin = open + kOpen.size();
    const size_t end = literal.find(kClose, begin);
    if (end != std::string::npos && end > begin) return literal.substr(begin, end - begin);
  }
  return {};
}

// Llama 3.1 and later open every conversation with a system turn that states two dates. Where the
// template would ask the clock for today's, its own fixed date is used: prompts stay reproducible.
std::string Llama3Preamble(std::string_view jinja) {
  std::string cutting;
  std::string date;
  for (const std::string& literal : JinjaLiterals(jinja)) {
    if (literal.starts_with("Cutting Knowledge Date:")) cutting = literal;
    // "26 Jul 2024"
    const bool dated = literal.size() == 11 && literal[2] == ' ' && literal[6] == ' ' &&
                       absl::ascii_isdigit(literal[0]) && absl::ascii_isdigit(literal[7]);
    if (dated && date.empty()) date = literal;
  }
  if (cutting.empty() || date.empty()) return {};
  return absl::StrCat(cutting, "Today Date: ", date, "\n\n");
}

absl::Status CheckRoles(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return absl::InvalidArgumentError("a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat("message ", i, " has the role \"",
                                                     Printable(role),
                                                     "\"; supported: system, user, assistant"));
    }
    if (role == "system" && i > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i, " is a system message; only the first may be one"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Collects pieces, joining neighbours of one kind.
class ChatTemplate::Writer {
 public:
  void Markup(std::string_view text) { Add(text, true); }
  void Content(std::string_view text) { Add(text, false); }
  std::vector<PromptPiece> Take() { return std::move(pieces_); }

 private:
  void Add(std::string_view text, bool special) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().special != special) pieces_.push_back({"", special});
    pieces_.back().text += text;
  }

  std::vector<PromptPiece> pieces_;
};

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(std::string_view jinja,
                                                     std::string_view bos_text) {
  constexpr const char* kAdvice = "render the prompt on the client and send it as text";
  if (jinja.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the model has no chat template: ", kAdvice));
  }
  ChatTemplate made;
  const bool writes_bos = Contains(jinja, "bos_token") || Contains(jinja, "<|begin_of_text|>");
  if (Contains(jinja, "<|im_start|>")) {
    made.family_ = ChatFamily::kChatMl;
    made.default_system_ = ChatMlDefaultSystem(jinja);
    if (writes_bos) made.bos_text_ = bos_text;
  } else if (Contains(jinja, "<|start_header_id|>")) {
    made.family_ = ChatFamily::kLlama3;
    made.system_preamble_ = Llama3Preamble(jinja);
    if (writes_bos) made.bos_text_ = bos_text.empty() ? "<|begin_of_text|>" : bos_text;
  } else if (Contains(jinja, "[INST]") && !Contains(jinja, "[SYSTEM_PROMPT]")) {
    made.family_ = ChatFamily::kLlama2;
    made.mistral_ = !Contains(jinja, "<<SYS>>");
    made.has_system_ = !made.mistral_ || Contains(jinja, "system_message");
    made.system_in_last_user_ = Contains(jinja, "loop.last and system_message");
    made.open_inst_ = Contains(jinja, "[INST] ") ? "[INST] " : "[INST]";
    made.close_inst_ = Contains(jinja, " [/INST]") ? " [/INST]" : "[/INST]";
    made.bos_text_ = bos_text.empty() ? "<s>" : bos_text;
  } else {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model's chat template is of no known family (ChatML, Llama-2, Llama-3): ", kAdvice));
  }
  return made;
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(
    const std::vector<ChatMessage>& messages) const {
  RF_RETURN_IF_ERROR(CheckRoles(messages));
  Writer out;
  switch (family_) {
    case ChatFamily::kChatMl:
      RenderChatMl(messages, out);
      break;
    case ChatFamily::kLlama3:
      RenderLlama3(messages, out);
      break;
    case ChatFamily::kLlama2:
      RF_RETURN_IF_ERROR(RenderLlama2(messages, out));
      break;
  }
  return out.Take();
}

void ChatTemplate::RenderChatMl(const std::vector<ChatMessage>& messages, Writer& out) const {
  out.Markup(bos_text_);
  if (messages[0].role != "system" && !default_system_.empty()) {
    out.Markup(absl::StrCat("<|im_start|>system\n", default_system_, "<|im_end|>\n"));
  }
  for (const ChatMessage& message : messages) {
    out.Markup(absl::StrCat("<|im_start|>", message.role, "\n"));
    out.Content(message.content);
    out.Markup("<|im_end|>\n");
  }
  out.Markup("<|im_start|>assistant\n");
}

void ChatTemplate::RenderLlama3(const std::vector<ChatMessage>& messages, Writer& out) const {
  const auto header = [](std::string_view role) {
    return absl::StrCat("<|start_header_id|>", std::string(role), "<|end_header_id|>\n\n");
  };
  out.Markup(bos_text_);
  const bool has_system = messages[0].role == "system";
  if (!system_preamble_.empty()) {
    out.Markup(header("system") + system_preamble_);
    if (has_system) out.Content(Trim(messages[0].content));
    out.Markup("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    if (message.role == "system" && !system_preamble_.empty()) continue;
    out.Markup(header(message.role));
    out.Content(Trim(message.content));
    out.Markup("<|eot_id|>");
  }
  out.Markup(header("assistant"));
}

absl::Status ChatTemplate::RenderLlama2(const std::vector<ChatMessage>& messages,
                                        Writer& out) const {
  const bool has_system = messages[0].role == "system";
  if (has_system && !has_system_) {
    return absl::InvalidArgumentError("the model's chat template has no system message");
  }
  const size_t first_user = has_system ? 1 : 0;
  if ((messages.size() - first_user) % 2 == 0) {
    return absl::InvalidArgumentError(
        "the model's chat template needs user and assistant messages in turn, a user last");
  }
  const size_t system_at = system_in_last_user_ ? messages.size() - 1 : first_user;
  for (size_t i = first_user; i < messages.size(); ++i) {
    const bool user = (i - first_user) % 2 == 0;
    if (messages[i].role != (user ? "user" : "assistant")) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i, " has the role ", messages[i].role,
                       "; the model's chat template needs user and assistant in turn"));
    }
    const std::string content = mistral_ ? messages[i].content : Trim(messages[i].content);
    if (!user) {
      if (!mistral_ || close_inst_.starts_with(' ')) out.Markup(" ");
      out.Content(content);
      out.Markup(mistral_ ? "</s>" : " </s>");
      continue;
    }
    if (i == first_user || !mistral_) out.Markup(bos_text_);
    out.Markup(open_inst_);
    if (has_system && i == system_at) {
      if (!mistral_) out.Markup("<<SYS>>\n");
      out.Content(messages[0].content);
      out.Markup(mistral_ ? "\n\n" : "\n<</SYS>>\n\n");
    }
    out.Content(content);
    out.Markup(close_inst_);
  }
  return absl::OkStatus();
}

std::string_view ChatTemplate::FamilyName(ChatFamily family) {
  switch (family) {
    case ChatFamily::kChatMl:
      return "chatml";
    case ChatFamily::kLlama2:
      return "llama2";
    case ChatFamily::kLlama3:
      return "llama3";
  }
  return "unknown";
}

}  // namespace ringfill
