#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "server/app/config.h"
#include "server/text.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace ringfill {
namespace {

// Reads the parser's events straight into the configuration, so that no document tree is ever built
// and aliases cannot multiply anything. Keeps the first error, with its line.
class ConfigReader final : public YAML::EventHandler {
 public:
  ConfigReader(std::string_view file, Config& config) : file_(file), config_(config) {}

  absl::Status status() const { return status_; }

  void Fail(const YAML::Mark& mark, std::string_view message) {
    if (!status_.ok()) return;
    const int line = mark.is_null() ? 0 : mark.line + 1;
    status_ = absl::InvalidArgumentError(Concat(file_, ":", line, ": ", message));
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (!status_.ok() || (sections_.empty() && !in_root_)) return;
    if (!key_) return Fail(mark, "a key is missing its name");
    if (FindConfigKey(*key_) != nullptr) {
      Fail(mark, Concat(*key_, ": no value; leave the key out to get its default"));
    } else if (!IsSection(*key_)) {
      Fail(key_mark_, UnknownKeyMessage(*key_));
    }
    key_.reset();
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Fail(mark, "anchors and aliases are not allowed here");
  }

  void OnAnchor(const YAML::Mark& mark, const std::string&) override {
    Fail(mark, "anchors and aliases are not allowed here");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    if (!status_.ok()) return;
    if (tag != "?" && tag != "!") return Fail(mark, "tags are not allowed here");
    if (!in_root_) return Fail(mark, kRootMessage);
    if (!key_) {
      key_ = sections_.empty() ? value : Concat(sections_.back(), ".", value);
      key_mark_ = mark;
      if (!seen_.insert(*key_).second) Fail(mark, Concat("\"", *key_, "\" is set twice"));
      return;
    }
    const ConfigKey* const found = FindConfigKey(*key_);
    if (found != nullptr) {
      const absl::Status set = SetConfigValue(*found, value, config_);
      if (!set.ok()) return Fail(mark, StdPiece(set.message()));
      config_.origins[*key_] = Concat(file_, ":", key_mark_.line + 1);
    } else if (IsSection(*key_)) {
      Fail(mark, Concat(*key_, " is a section: it holds keys, not a value"));
    } else {
      Fail(key_mark_, UnknownKeyMessage(*key_));
    }
    key_.reset();
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Fail(mark, in_root_ ? "lists are not allowed here" : kRootMessage);
  }
  void OnSequenceEnd() override {}

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    if (!status_.ok()) return;
    if (tag != "?" && !tag.empty()) return Fail(mark, "tags are not allowed here");
    if (!in_root_) {
      in_root_ = true;
      return;
    }
    if (!key_) return Fail(mark, "a key must be a name");
    if (FindConfigKey(*key_) != nullptr) {
      return Fail(key_mark_, Concat(*key_, " takes a value, not keys of its own"));
    }
    if (!IsSection(*key_)) return Fail(key_mark_, UnknownKeyMessage(*key_));
    sections_.push_back(*std::move(key_));
    key_.reset();
  }

  void OnMapEnd() override {
    if (!sections_.empty()) sections_.pop_back();
  }

 private:
  static constexpr std::string_view kRootMessage =
      "the file must be a map of sections (server:, model:, ...)";

  static bool IsSection(std::string_view name) {
    for (const ConfigKey& key : ConfigTable()) {
      if (key.name.size() > name.size() && key.name.starts_with(name) &&
          key.name[name.size()] == '.') {
        return true;
      }
    }
    return false;
  }

  const std::string_view file_;
  Config& config_;
  absl::Status status_;
  bool in_root_ = false;
  std::vector<std::string> sections_;  // full names of the open maps below the root
  std::optional<std::string> key_;     // full name, while its value is awaited
  YAML::Mark key_mark_;
  std::set<std::string> seen_;
};

// The offset of the first NUL or of the first sequence that is not UTF-8; the size when there is
// none. The parser takes a NUL for the end.
size_t FirstBadByte(std::string_view text) {
  const auto byte = [&](size_t i) -> uint8_t { return i < text.size() ? text[i] : 0; };
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t lead = byte(i);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0 || (lead >= 0x80 && lead < 0xc2) || lead > 0xf4) return i;
    // Overlong forms, surrogates and what lies past U+10FFFF.
    const uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (length > 1 && (byte(i + 1) < least || byte(i + 1) > most)) return i;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    }
    i += length;
  }
  return text.size();
}

}  // namespace

absl::Status ApplyConfigYaml(std::string_view text, std::string_view file, Config& config) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        Concat(file, ": larger than ", kMaxConfigBytes, " bytes; not a configuration file"));
  }
  if (const size_t bad = FirstBadByte(text); bad < text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + bad, '\n');
    return absl::InvalidArgumentError(
        Concat(file, ":", line, ": not UTF-8 text (byte ", bad, " of the file)"));
  }
  ConfigReader reader(file, config);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(reader)) {
      ConfigReader rest(file, config);
      if (reader.status().ok() && parser.HandleNextDocument(rest)) {
        return absl::InvalidArgumentError(
            Concat(file, ": a second document (after ---) is not allowed"));
      }
    }
  } catch (const YAML::Exception& e) {
    reader.Fail(e.mark, e.msg);
  } catch (const std::exception& e) {
    reader.Fail(YAML::Mark::null_mark(), e.what());
  }
  return reader.status();
}

absl::Status ApplyConfigFile(const std::string& path, Config& config) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(Concat(path, ": is a directory"));
  }
  // Opening a pipe would wait for whoever writes to it.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(Concat(path, ": not a regular file"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(Concat(path, ": cannot be read"));
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return absl::InvalidArgumentError(Concat(path, ": cannot be read"));
  return ApplyConfigYaml(text, path, config);
}

}  // namespace ringfill
