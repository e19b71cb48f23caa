// The prefill progress display on stderr: one line redrawn in place on a terminal, else a plain
// line at most every ten per cent.
#pragma once

#include <cstdint>
#include <string>

#include "cli/console.h"
#include "cli/options.h"

namespace ringfill::cli {

struct ProgressSample {
  uint64_t processed_tokens = 0;
  uint64_t total_tokens = 0;
  double tokens_per_s = 0;
  double eta_s = 0;
};

// "1,234,567".
std::string FormatCount(uint64_t count);
// "1 page", "1,234 pages".
std::string FormatNumbered(uint64_t count, const std::string& noun);
// "850 ms", "4.2 s", "3 min 20 s", "2 h 05 min". Negative or not finite: "?".
std::string FormatSeconds(double seconds);
// "prefill [####----] 3,072/7,639 tokens  40 %  1,215 tok/s  ETA 3.8 s", at most `columns` wide:
// the bar shrinks first, then goes.
std::string FormatProgress(const ProgressSample& sample, int columns);

// Not thread-safe. `console` outlives it.
class ProgressDisplay {
 public:
  ProgressDisplay(Console& console, ProgressMode mode);
  ~ProgressDisplay() { Clear(); }
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;

  // A line that the next one replaces, such as a place in the queue. Nothing without a terminal.
  void ShowNote(const std::string& note);
  void Show(const ProgressSample& sample);
  // Removes the line from the terminal. Call before other output.
  void Clear();

 private:
  void Redraw(const std::string& line);

  Console& console_;
  const bool enabled_;
  const bool in_place_;
  bool drawn_ = false;
  uint64_t next_plain_percent_ = 10;
};

}  // namespace ringfill::cli
