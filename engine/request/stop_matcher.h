// Finds stop strings in streamed text and holds back what could still become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringfill {

// Owned by one request; not thread-safe. Linear in the text for any stop strings.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Result {
    std::string text;      // may be released to the client
    bool matched = false;  // a stop string is complete; text ends right before it
    std::string stop;  // which; the one that begins first, the longer of those beginning together
  };
  Result Push(std::string_view text);
  // The end of the stream: everything still held back.
  std::string Flush();

 private:
  std::vector<std::string> stops_;
  std::string held_;  // a proper prefix of some stop string
};

}  // namespace ringfill
