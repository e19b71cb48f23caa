#include "engine/model/jinja_text.h"

namespace ringfill {
namespace {

// Reads the literal that opens at text[at] (a quote); leaves `at` behind its closing quote.
std::string ReadLiteral(std::string_view text, size_t& at) {
  const char quote = text[at++];
  std::string literal;
  while (at < text.size() && text[at] != quote) {
    char c = text[at++];
    if (c == '\\' && at < text.size()) {
      c = text[at++];
      if (c == 'n') c = '\n';
      if (c == 't') c = '\t';
    }
    literal += c;
  }
  if (at < text.size()) ++at;
  return literal;
}

// The literals of the block that opens at text[at] ("{{" or "{%"); leaves `at` behind its end.
void ReadBlock(std::string_view text, size_t& at, std::vector<std::string>& out) {
  const char close = text[at + 1] == '{' ? '}' : '%';
  at += 2;
  while (at < text.size()) {
    if (text[at] == '\'' || text[at] == '"') {
      out.push_back(ReadLiteral(text, at));
    } else if (text[at] == close && at + 1 < text.size() && text[at + 1] == '}') {
      at += 2;
      return;
    } else {
      ++at;
    }
  }
}

}  // namespace

std::vector<std::string> JinjaLiterals(std::string_view jinja) {
  std::vector<std::string> literals;
  size_t at = 0;
  while (at < jinja.size()) {
    size_t open = jinja.find('{', at);
    while (open != std::string_view::npos && open + 1 < jinja.size() &&
           std::string_view("{%#").find(jinja[open + 1]) == std::string_view::npos) {
      open = jinja.find('{', open + 1);
    }
    if (open == std::string_view::npos || open + 1 >= jinja.size()) open = jinja.size();
    if (open > at) literals.emplace_back(jinja.substr(at, open - at));
    at = open;
    if (at == jinja.size()) break;
    if (jinja[at + 1] == '#') {
      const size_t end = jinja.find("#}", at + 2);
      at = end == std::string_view::npos ? jinja.size() : end + 2;
    } else {
      ReadBlock(jinja, at, literals);
    }
  }
  return literals;
}

}  // namespace ringfill
