// The printable alphabet in which byte-level BPE vocabularies write bytes: a printable Latin-1 byte
// stands for itself, the other 68 take U+0100 to U+0143 in order.
//
// Source: the byte encoder of GPT-2 (Radford et al., 2019).
#pragma once

#include <string>
#include <string_view>

namespace ringfill {

// The bytes that `symbols` stands for, appended to `out`. False (and `out` as before) when it holds
// anything outside of the alphabet.
bool AppendAlphabetBytes(std::string_view symbols, std::string& out);

// The symbol of a byte, as UTF-8.
std::string AlphabetSymbol(unsigned char byte);

}  // namespace ringfill
