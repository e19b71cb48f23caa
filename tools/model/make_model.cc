#include "tools/model/make_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/output_file.h"
#include "tools/model/command.h"

namespace ringfill {
namespace {

constexpr int kMinVocab = kTinySpecialTokens + 256;

struct Bound {
  const char* name;
  int64_t value;
  int64_t min, max;
  int64_t multiple_of;
};

// The types of rows are a type's blocks: a multiple of 32 where one of the matrices is quantised.
int64_t RowMultiple(const TinyModelOptions& o) {
  int block = 1;
  for (const WeightType type : {o.embedding, o.q, o.o, o.gate, o.down}) {
    block = std::max(block, GetWeightTypeInfo(type).block_weights);
  }
  return block;
}

absl::Status CheckGeometry(const TinyModelOptions& o) {
  const int64_t row = RowMultiple(o);
  const Bound bounds[] = {
      {"layers", o.layers, 1, 1024, 1},
      {"width", o.width, 1, 1 << 20, row},
      {"heads", o.heads, 1, 4096, 1},
      {"kv-heads", o.kv_heads, 1, 4096, 1},
      {"head-dim", o.head_dim, 2, 4096, 2},
      {"ffn", o.ffn_width, 1, 1 << 24, row},
      {"vocab", o.vocab, kMinVocab, 1 << 24, 1},
      {"context", o.context_length, 1, 1 << 30, 1},
      {"heads times head-dim", int64_t{o.heads} * o.head_dim, 1, 1 << 20, row},
  };
  for (const Bound& b : bounds) {
    if (b.value >= b.min && b.value <= b.max && b.value % b.multiple_of == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(b.name, " is ", b.value, "; it must be ",
                     b.multiple_of > 1 ? absl::StrCat("a multiple of ", b.multiple_of, " ") : "",
                     "from ", b.min, " to ", b.max));
  }
  if (o.heads % o.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads is ", o.heads, "; it must be a multiple of kv-heads, ", o.kv_heads));
  }
  return absl::OkStatus();
}

std::map<std::string, WeightType> TypeNames() {
  std::map<std::string, WeightType> names;
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ8_0}) {
    names[absl::AsciiStrToLower(std::string(GetWeightTypeInfo(type).name))] = type;
  }
  return names;
}

}  // namespace

absl::Status MakeModel(const TinyModelOptions& options, const std::string& path) {
  RF_RETURN_IF_ERROR(CheckGeometry(options));
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  GgufWriter writer;
  AddTinyMetadata(options, writer);
  AddTinyTokenizer(options, writer);
  AddTinyTensors(options, writer);
  RF_RETURN_IF_ERROR(writer.WriteTo([&](std::string_view bytes) { return file->Write(bytes); }));
  return file->Commit();
}

int RunMakeModel(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  TinyModelOptions options;
  std::string path;
  std::string type = "f32";
  bool untied = false;
  CLI::App app(
      "Writes a random Llama model of any geometry as a GGUF file. Its answers mean nothing, but "
      "they are the same each time, and a small one reads 128K tokens in seconds.",
      "ringfill-make-model");
  app.add_option("--out", path, "The file to write")->type_name("FILE")->required();
  const auto number = [&app](const char* flag, auto& value, const char* help) {
    app.add_option(flag, value, help)->type_name("N")->capture_default_str();
  };
  number("--layers", options.layers, "Layers");
  number("--width", options.width, "Width of the hidden state");
  number("--heads", options.heads, "Query heads, a multiple of the KV heads");
  number("--kv-heads", options.kv_heads, "KV heads");
  number("--head-dim", options.head_dim, "Values of a head, even");
  number("--ffn", options.ffn_width, "Width of the feed-forward part");
  number("--vocab", options.vocab, "Tokens; at least 259, the tokenizer's bytes");
  number("--context", options.context_length, "Tokens that it is said to be trained for");
  number("--seed", options.seed, "Other weights");
  number("--rope-base", options.rope_base, "Base of the rotary positions");
  app.add_option("--type", type, "How matrices are stored: f32, f16, bf16, q4_0, q4_1 or q8_0")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_flag("--untied", untied, "With an output head of its own");
  app.footer(
      "Quantised types need widths that are multiples of 32.\n\n"
      "Examples:\n"
      "  ringfill-make-model --out tiny.gguf --context 131072\n"
      "  ringfill-make-model --out odd.gguf --layers 3 --width 576 --heads 9 --kv-heads 3 \\\n"
      "      --head-dim 64 --ffn 1536 --type q4_1\n"
      "  ringfilld --set model.path=tiny.gguf --set ranks.count=4\n\n"
      "Exit codes: 0 done, 1 the model cannot be made, 2 usage.");
  return RunCommand(app, std::move(arguments), out, err, [&]() -> absl::Status {
    const std::map<std::string, WeightType> types = TypeNames();
    const auto found = types.find(absl::AsciiStrToLower(type));
    if (found == types.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("type is ", type, "; it must be f32, f16, bf16, q4_0, q4_1 or q8_0"));
    }
    options.SetMatrixTypes(found->second);
    options.tied = !untied;
    RF_RETURN_IF_ERROR(MakeModel(options, path));
    RF_ASSIGN_OR_RETURN(const std::string description, DescribeModel(path));
    out << "wrote " << path << ": " << description << "\n";
    return absl::OkStatus();
  });
}

}  // namespace ringfill
