// Finds stop strings in streamed text and holds back what could still become one.
//
// Source of the algorithm: Aho and Corasick, "Efficient string matching: an aid to bibliographic
// search" (1975).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ringfill {

// Owned by one request; not thread-safe. Linear in the text for any stop strings, however the text
// is cut into pushes.
class StopMatcher {
 public:
  // REQUIRES: no stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Result {
    std::string text;      // may be released to the client
    bool matched = false;  // a stop string is complete; text ends right before it
    // Which; of those complete in the text so far the one that begins first, the longer of those
    // beginning together.
    std::string stop;
  };
  // After a match the matcher starts anew; what follows the stop string in `text` is dropped.
  Result Push(std::string_view text);
  // The end of the stream: everything still held back.
  std::string Flush();

  // Automaton steps so far: at most two for each byte of text.
  int64_t steps() const { return steps_; }

 private:
  struct Node {
    std::vector<std::pair<char, int>> children;  // at most one for each stop string
    int fail = 0;                                // the longest proper suffix that is a node
    int depth = 0;
    int stop = -1;  // the longest stop string that ends here, -1: none
  };

  void Insert(int stop);
  void LinkSuffixes();
  int Child(int node, char c) const;
  void Advance(char c);
  std::string TakeHeld(size_t bytes);
  void Reset();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;  // [0] is the root
  int node_ = 0;             // the longest suffix of the text that is a prefix of a stop string
  std::string held_;         // held_[held_begin_...] is that suffix between pushes
  size_t held_begin_ = 0;
  int64_t steps_ = 0;
};

}  // namespace ringfill
