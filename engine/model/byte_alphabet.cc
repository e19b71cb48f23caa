#include "engine/model/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace ringfill {
namespace {

constexpr int kFirstShifted = 0x100;
constexpr int kShifted = 68;
constexpr int kCodes = kFirstShifted + kShifted;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<int16_t, 256> code{};        // of each byte
  std::array<int16_t, kCodes> byte_of{};  // -1: no byte

  constexpr Alphabet() {
    byte_of.fill(-1);
    int next = kFirstShifted;
    for (int byte = 0; byte < 256; ++byte) {
      code[byte] = static_cast<int16_t>(StandsForItself(byte) ? byte : next++);
      byte_of[code[byte]] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

bool AppendAlphabetBytes(std::string_view symbols, std::string& out) {
  const size_t before = out.size();
  size_t at = 0;
  while (at < symbols.size()) {
    // Codes end at U+0143, so one or two bytes of UTF-8.
    int code = static_cast<unsigned char>(symbols[at++]);
    if (code >= 0xc2 && code <= 0xc5 && at < symbols.size() && (symbols[at] & 0xc0) == 0x80) {
      code = ((code & 0x1f) << 6) | (symbols[at++] & 0x3f);
    } else if (code >= 0x80) {
      code = kCodes;
    }
    if (code >= kCodes || kAlphabet.byte_of[code] < 0) {
      out.resize(before);
      return false;
    }
    out += static_cast<char>(kAlphabet.byte_of[code]);
  }
  return true;
}

std::string AlphabetSymbol(unsigned char byte) {
  const int code = kAlphabet.code[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace ringfill
