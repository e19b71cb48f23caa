#include "cli/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ringfill::cli {
namespace {

constexpr int kMaxBar = 30;
constexpr int kMinBar = 8;

uint64_t Percent(const ProgressSample& sample) {
  if (sample.total_tokens == 0) return 100;
  return std::min<uint64_t>(100, sample.processed_tokens * 100 / sample.total_tokens);
}

std::string Numbers(const ProgressSample& sample) {
  std::string text = absl::StrFormat("%s/%s tokens %3d %%", FormatCount(sample.processed_tokens),
                                     FormatCount(sample.total_tokens), Percent(sample));
  if (sample.tokens_per_s > 0) {
    absl::StrAppend(&text, "  ", FormatCount(std::llround(sample.tokens_per_s)), " tok/s");
    if (sample.processed_tokens < sample.total_tokens) {
      absl::StrAppend(&text, "  ETA ", FormatSeconds(sample.eta_s));
    }
  }
  return text;
}

}  // namespace

std::string FormatCount(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string FormatNumbered(uint64_t count, const std::string& noun) {
  return FormatCount(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  if (seconds < 0.01) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 9.995) return absl::StrFormat("%.2f s", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

std::string FormatProgress(const ProgressSample& sample, int columns) {
  const std::string numbers = Numbers(sample);
  // The last column stays free: some terminals wrap when it is written.
  constexpr int kFrame = 11;  // "prefill [] "
  const int room = columns - 1 - kFrame - static_cast<int>(numbers.size());
  if (room < kMinBar) return absl::StrCat("prefill ", numbers).substr(0, std::max(0, columns - 1));
  const int width = std::min(room, kMaxBar);
  const int filled = static_cast<int>(Percent(sample) * width / 100);
  return absl::StrCat("prefill [", std::string(filled, '#'), std::string(width - filled, '-'), "] ",
                      numbers);
}

ProgressDisplay::ProgressDisplay(Console& console, ProgressMode mode)
    : console_(console),
      enabled_(mode == ProgressMode::kAlways ||
               (mode == ProgressMode::kAuto && console.err_is_terminal)),
      in_place_(console.err_is_terminal) {}

void ProgressDisplay::ShowNote(const std::string& note) {
  if (enabled_ && in_place_) Redraw(note.substr(0, std::max(0, console_.columns - 1)));
}

void ProgressDisplay::Show(const ProgressSample& sample) {
  if (!enabled_) return;
  if (in_place_) {
    Redraw(FormatProgress(sample, console_.columns));
    return;
  }
  const uint64_t percent = Percent(sample);
  if (percent < next_plain_percent_) return;
  next_plain_percent_ = (percent / 10 + 1) * 10;
  console_.err << "prefill " << Numbers(sample) << std::endl;
}

void ProgressDisplay::Clear() {
  if (!drawn_) return;
  console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void ProgressDisplay::Redraw(const std::string& line) {
  console_.err << "\r\x1b[K" << line << std::flush;
  drawn_ = true;
}

}  // namespace ringfill::cli
