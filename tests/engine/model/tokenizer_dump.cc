// Tokenizes lines of hexadecimal bytes from stdin, one line of ids each, for comparisons with other
// tokenizers (tools/compare_tokenizers.py).
//
//   tokenizer_dump MODEL.gguf [PRE_TOKENIZER]

#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "engine/model/tokenizer.h"
#include "tests/testing/tokenizer_files.h"

namespace ringfill {
namespace {

absl::Status Run(const std::string& path, const std::string& pre_tokenizer) {
  RF_ASSIGN_OR_RETURN(const auto model, GgufFile::Open(path));
  const std::vector<std::byte> copy = CopyTokenizer(*model, pre_tokenizer);
  RF_ASSIGN_OR_RETURN(const auto file, GgufFile::Parse(copy, path));
  RF_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::FromGguf(*file));
  std::string line;
  while (std::getline(std::cin, line)) {
    RF_ASSIGN_OR_RETURN(const auto ids, tokenizer->Encode(absl::HexStringToBytes(line), {true}));
    for (size_t i = 0; i < ids.size(); ++i) std::printf(i == 0 ? "%d" : " %d", ids[i]);
    std::printf("\n");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: tokenizer_dump MODEL.gguf [PRE_TOKENIZER]\n");
    return 2;
  }
  const absl::Status status = ringfill::Run(argv[1], argc == 3 ? argv[2] : "");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
