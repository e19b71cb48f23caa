// Single values: text to field and back, and what --help says of them.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/app/config.h"
#include "server/text.h"

namespace ringfill {
namespace {

constexpr int64_t kMostGpu = 1023;

struct ByteUnit {
  std::string_view suffix;
  int64_t bytes;
};

constexpr ByteUnit kByteUnits[] = {
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
    {"B", 1},
};

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  // SimpleAtoi trims spaces and takes a plus sign; a configuration file has no use for either.
  if (text.empty() || (text[0] != '-' && !std::isdigit(static_cast<unsigned char>(text[0])))) {
    return std::nullopt;
  }
  if (!std::isdigit(static_cast<unsigned char>(text.back()))) return std::nullopt;
  if (!absl::SimpleAtoi(AbslPiece(text), &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  int64_t unit = 1;
  for (const ByteUnit& candidate : kByteUnits) {
    if (text.ends_with(candidate.suffix)) {
      unit = candidate.bytes;
      text.remove_suffix(candidate.suffix.size());
      while (text.ends_with(' ')) text.remove_suffix(1);
      break;
    }
  }
  const std::optional<int64_t> count = ParseInteger(text);
  if (!count || *count > std::numeric_limits<int64_t>::max() / unit || *count < 0) {
    return std::nullopt;
  }
  return *count * unit;
}

std::string FormatBytes(int64_t bytes) {
  for (int i = 3; i >= 0; --i) {
    if (bytes != 0 && bytes % kByteUnits[i].bytes == 0) {
      return Concat(bytes / kByteUnits[i].bytes, kByteUnits[i].suffix);
    }
  }
  return Concat(bytes);
}

std::string NumberText(const ConfigKey& key, double value) {
  if (key.kind == ConfigKind::kBytes) return FormatBytes(static_cast<int64_t>(value));
  if (key.kind == ConfigKind::kSeconds || key.kind == ConfigKind::kFraction) return Concat(value);
  return Concat(static_cast<int64_t>(value));
}

bool InRange(const ConfigKey& key, double value) { return value >= key.min && value <= key.max; }

bool Assign(const ConfigKey& key, std::string_view text, Config& config) {
  switch (key.kind) {
    case ConfigKind::kInteger:
    case ConfigKind::kBytes: {
      const auto value = key.kind == ConfigKind::kBytes ? ParseBytes(text) : ParseInteger(text);
      if (!value || !InRange(key, static_cast<double>(*value)) || *value % key.multiple_of != 0) {
        return false;
      }
      config.*std::get<int64_t Config::*>(key.field) = *value;
      return true;
    }
    case ConfigKind::kSeconds:
    case ConfigKind::kFraction: {
      double value = 0;
      if (!absl::SimpleAtod(AbslPiece(text), &value) || !std::isfinite(value) ||
          !InRange(key, value)) {
        return false;
      }
      config.*std::get<double Config::*>(key.field) = value;
      return true;
    }
    case ConfigKind::kBool:
      if (text != "true" && text != "false") return false;
      config.*std::get<bool Config::*>(key.field) = text == "true";
      return true;
    case ConfigKind::kGpus:
      if (!ParseGpus(text)) return false;
      break;
    case ConfigKind::kWeights:
      if (!ParseWeights(text)) return false;
      break;
    case ConfigKind::kChoice:
      if (std::find(key.choices.begin(), key.choices.end(), text) == key.choices.end()) {
        return false;
      }
      break;
    case ConfigKind::kAddress:
      if (!(text.empty() && key.may_be_empty) && !IsAddress(text)) return false;
      break;
    case ConfigKind::kText:
      if (text.find('\0') != std::string_view::npos) return false;
      break;
  }
  config.*std::get<std::string Config::*>(key.field) = std::string(text);
  return true;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

bool IsAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!bracketed && host.find_first_of(":[]/ ,\"\\") != std::string_view::npos) return false;
  const std::optional<int64_t> port = ParseInteger(text.substr(colon + 1));
  return port && *port >= 0 && *port <= 65535;
}

std::optional<std::vector<int>> ParseGpus(std::string_view text) {
  std::vector<int> gpus;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::optional<int64_t> gpu = ParseInteger(text.substr(0, comma));
    if (!gpu || *gpu < 0 || *gpu > kMostGpu || comma == text.size() - 1) return std::nullopt;
    gpus.push_back(static_cast<int>(*gpu));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return gpus;
}

std::optional<std::vector<double>> ParseWeights(std::string_view text) {
  std::vector<double> weights;
  if (text.empty() || text == "auto") return weights;
  for (const absl::string_view part : absl::StrSplit(AbslPiece(text), ',')) {
    double weight = 0;
    if (!absl::SimpleAtod(part, &weight) || !std::isfinite(weight) || weight <= 0) {
      return std::nullopt;
    }
    weights.push_back(weight);
  }
  return weights;
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  const bool in_127 =
      host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
  return in_127 || host == "[::1]" || host == "localhost";
}

std::string AllowedValues(const ConfigKey& key) {
  switch (key.kind) {
    case ConfigKind::kChoice: {
      std::string names;
      for (size_t i = 0; i < key.choices.size(); ++i) {
        names += Concat(i == 0 ? "" : i + 1 == key.choices.size() ? " or " : ", ", key.choices[i]);
      }
      return names;
    }
    case ConfigKind::kAddress:
      return Concat("HOST:PORT or [IPv6]:PORT, port 0 to 65535",
                    key.may_be_empty ? ", or \"\"" : "");
    case ConfigKind::kText:
      return "text";
    case ConfigKind::kBool:
      return "true or false";
    case ConfigKind::kWeights:
      return "\"\", auto or positive numbers separated by commas";
    case ConfigKind::kGpus:
      return "\"\" or numbers of GPUs separated by commas";
    case ConfigKind::kFraction:
      return Concat("a number from ", key.min, " to ", key.max);
    case ConfigKind::kSeconds:
      return Concat("seconds from ", key.min, " to ", key.max);
    case ConfigKind::kInteger:
    case ConfigKind::kBytes:
      break;
  }
  return Concat(key.kind == ConfigKind::kBytes ? "bytes (as 1048576 or 1MiB) " : "an integer ",
                key.multiple_of > 1 ? Concat("divisible by ", key.multiple_of, " ") : "", "from ",
                NumberText(key, key.min), " to ", NumberText(key, key.max));
}

absl::Status SetConfigValue(const ConfigKey& key, std::string_view text, Config& config) {
  constexpr size_t kShown = 100;
  if (Assign(key, text, config)) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(key.name, ": \"", text.substr(0, kShown),
                                           "\" is not allowed; expected ", AllowedValues(key)));
}

std::string ConfigValueText(const ConfigKey& key, const Config& config) {
  if (const auto* integer = std::get_if<int64_t Config::*>(&key.field)) {
    const int64_t value = config.**integer;
    return key.kind == ConfigKind::kBytes ? FormatBytes(value) : Concat(value);
  }
  if (const auto* real = std::get_if<double Config::*>(&key.field)) {
    return Concat(config.**real);
  }
  if (const auto* flag = std::get_if<bool Config::*>(&key.field)) {
    return config.**flag ? "true" : "false";
  }
  return config.*std::get<std::string Config::*>(key.field);
}

std::string PrintConfig(const Config& config) {
  std::string out;
  std::string_view section;
  for (const ConfigKey& key : ConfigTable()) {
    const size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      out += Concat(section, ":\n");
    }
    const std::string value = ConfigValueText(key, config);
    const bool quote = key.kind == ConfigKind::kText || key.kind == ConfigKind::kAddress ||
                       key.kind == ConfigKind::kWeights || key.kind == ConfigKind::kGpus;
    out += Concat("  ", key.name.substr(dot + 1), ": ", quote ? Quoted(value) : value, "\n");
  }
  return out;
}

std::string ConfigHelp() {
  std::string out = "Configuration keys (YAML sections and names joined by a dot):\n";
  for (const ConfigKey& key : ConfigTable()) {
    const std::string_view shown = key.default_text.empty() ? "\"\"" : key.default_text;
    out += Concat("  ", key.name, " = ", shown, "\n      ", key.description, "\n");
    if (key.kind != ConfigKind::kText) {
      out += Concat("      Allowed: ", AllowedValues(key), ".\n");
    }
  }
  return out;
}

}  // namespace ringfill
