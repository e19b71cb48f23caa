// Chat templates, by recognition: the Jinja text stored with a model is matched against the known
// families and rendered by code. What is not recognised is refused: the client renders itself.
#pragma once

#include <memory>
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
  // to render the prompt itself and send it as text.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view jinja);

  // The whole conversation with the opening of the assistant's turn at its end. A default system
  // message that the stored template adds when none is given (SmolLM2, Qwen2 do) is added too.
  // INVALID_ARGUMENT for an unknown role, no messages, or an order that the family cannot express.
  absl::StatusOr<std::vector<PromptPiece>> Render(const std::vector<ChatMessage>& messages) const;

  ChatFamily family() const { return family_; }
  static std::string_view FamilyName(ChatFamily family);

 private:
  ChatFamily family_ = ChatFamily::kChatMl;
  std::string default_system_;  // ChatML only; empty: none
  bool bos_ = false;            // the template writes BOS itself
  bool mistral_ = false;        // [INST] without <<SYS>>
  std::string bos_text_;
};

}  // namespace ringfill
