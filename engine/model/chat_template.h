// Chat templates, by recognition: the Jinja text stored with a model is matched against the known
// families and rendered by code. What is not recognised is refused: the client renders itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace ringfill {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

enum class ChatFamily { kChatMl, kLlama2, kLlama3 };  // kLlama2 covers Mistral's [INST] form

// A rendered prompt in pieces. Only `special` pieces may be tokenized with special tokens parsed:
// message contents never are, so that a user cannot forge a turn.
struct PromptPiece {
  std::string text;
  bool special = false;
};

// Immutable; thread-safe.
class ChatTemplate {
 public:
  // FAILED_PRECONDITION when `jinja` is empty or of no known family; the message tells the client
  // to render the prompt itself and send it as text. `bos_text` is the model's BOS token as text,
  // for templates that write it; empty: the family's usual one (ChatML has none).
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view jinja,
                                                std::string_view bos_text = {});

  // The whole conversation with the opening of the assistant's turn at its end. A default system
  // message that the stored template adds when none is given (SmolLM2, Qwen2 do) is added too.
  // INVALID_ARGUMENT for an unknown role, no messages, a system message that is not the first, or
  // an order that the family cannot express (the [INST] forms need user and assistant in turn, a
  // user last). Contents are trimmed of white space where the family's template does so. The pieces
  // are to be tokenized together (Tokenizer::EncodePieces).
  absl::StatusOr<std::vector<PromptPiece>> Render(const std::vector<ChatMessage>& messages) const;

  ChatFamily family() const { return family_; }
  static std::string_view FamilyName(ChatFamily family);

 private:
  class Writer;
  void RenderChatMl(const std::vector<ChatMessage>& messages, Writer& out) const;
  void RenderLlama3(const std::vector<ChatMessage>& messages, Writer& out) const;
  absl::Status RenderLlama2(const std::vector<ChatMessage>& messages, Writer& out) const;

  ChatFamily family_ = ChatFamily::kChatMl;
  std::string bos_text_;         // empty: the template writes none
  std::string default_system_;   // ChatML: the system message when none is given
  std::string system_preamble_;  // Llama 3.1 and later: opens a system turn that is always there
  // The two [INST] forms.
  bool mistral_ = false;              // no <<SYS>>: the system text opens a user message
  bool system_in_last_user_ = false;  // the last one rather than the first
  bool has_system_ = true;
  std::string open_inst_, close_inst_;  // with the template's spaces
};

}  // namespace ringfill
