#include "tools/model/cut_model.h"

#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/output_file.h"
#include "engine/model/gguf_parser.h"
#include "engine/model/model.h"
#include "tests/testing/gguf_fields.h"
#include "tools/model/command.h"

namespace ringfill {
namespace {

constexpr size_t kCountsOffset = 8;     // number of tensors, number of values
constexpr size_t kMetadataOffset = 24;  // GGUF v2 and v3

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The layer that a tensor belongs to; nothing for those of the whole model.
std::optional<int> LayerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int layer = 0;
  const char* const end = name.data() + name.size();
  const auto [next, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  if (error != std::errc() || next == end || *next != '.') return std::nullopt;
  return layer;
}

std::span<const std::byte> TensorBytes(const GgufFile& file, const GgufTensor& tensor) {
  const WeightType type = *WeightTypeFromGguf(tensor.type_id);  // the model loaded
  const size_t rows = tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  return file.bytes().subspan(tensor.offset,
                              rows * WeightRowBytes(type, static_cast<int64_t>(tensor.shape[0])));
}

// The metadata as it is, with another llama.block_count.
absl::StatusOr<std::string> CutMetadata(const GgufFile& file, int layers) {
  size_t header_bytes = 0;
  const std::vector<GgufField> fields = ListGgufFields(file.bytes(), &header_bytes);
  size_t end = header_bytes;
  size_t count_at = 0;
  size_t count_bytes = 0;
  std::string_view key;
  for (const GgufField& field : fields) {
    const std::string_view what = field.what;
    if (what == "tensor 0 length") end = field.offset;
    if (what.starts_with("key ")) {
      uint64_t length = 0;
      std::memcpy(&length, file.bytes().data() + field.offset, sizeof(length));
      key = Text(file.bytes().subspan(field.offset + sizeof(length), length));
    }
    if (what.starts_with("value ") && what.ends_with(" type") && key == "llama.block_count") {
      uint32_t type = 0;
      std::memcpy(&type, file.bytes().data() + field.offset, sizeof(type));
      count_at = field.offset + sizeof(type);
      count_bytes = GgufScalarBytes(static_cast<GgufType>(type));
      key = {};
    }
  }
  if (count_at == 0) return file.Error("metadata value llama.block_count is missing");
  std::string metadata(Text(file.bytes().subspan(kMetadataOffset, end - kMetadataOffset)));
  const auto value = static_cast<uint64_t>(layers);  // little-endian, and no larger than before
  std::memcpy(metadata.data() + (count_at - kMetadataOffset), &value, count_bytes);
  return metadata;
}

std::string TensorInfo(const GgufTensor& tensor, uint64_t offset) {
  std::string out;
  Put<uint64_t>(out, tensor.name.size());
  out += tensor.name;
  Put<uint32_t>(out, static_cast<uint32_t>(tensor.dims));
  for (int d = 0; d < tensor.dims; ++d) Put<uint64_t>(out, tensor.shape[d]);
  Put<uint32_t>(out, tensor.type_id);
  Put<uint64_t>(out, offset);
  return out;
}

absl::Status WriteCopy(const GgufFile& file, const std::vector<const GgufTensor*>& tensors,
                       int layers, OutputFile& out) {
  RF_ASSIGN_OR_RETURN(const uint64_t alignment, file.GetUint("general.alignment", 32));
  const auto padding = [&](uint64_t at) { return (alignment - at % alignment) % alignment; };
  std::string header(Text(file.bytes().first(kMetadataOffset)));
  const uint64_t count = tensors.size();
  std::memcpy(header.data() + kCountsOffset, &count, sizeof(count));
  RF_ASSIGN_OR_RETURN(const std::string metadata, CutMetadata(file, layers));
  header += metadata;
  uint64_t offset = 0;
  for (const GgufTensor* tensor : tensors) {
    header += TensorInfo(*tensor, offset);
    offset += TensorBytes(file, *tensor).size();
    offset += padding(offset);
  }
  header.append(padding(header.size()), '\0');
  RF_RETURN_IF_ERROR(out.Write(header));
  for (const GgufTensor* tensor : tensors) {
    const std::span<const std::byte> bytes = TensorBytes(file, *tensor);
    RF_RETURN_IF_ERROR(out.Write(Text(bytes)));
    RF_RETURN_IF_ERROR(out.Write(std::string(padding(bytes.size()), '\0')));
  }
  return absl::OkStatus();
}

absl::Status CheckCopy(const GgufFile& file, const std::vector<const GgufTensor*>& tensors,
                       int layers, const std::string& copy) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(copy));
  const GgufFile& written = model->file();
  bool same = model->config().layers == layers && written.tensors().size() == tensors.size();
  for (const GgufTensor* tensor : tensors) {
    const GgufTensor* const found = written.FindTensor(tensor->name);
    same = same && found != nullptr && found->type_id == tensor->type_id &&
           Text(TensorBytes(written, *found)) == Text(TensorBytes(file, *tensor));
  }
  return same ? absl::OkStatus()
              : absl::DataLossError(absl::StrCat(copy, " does not read back as it was written"));
}

}  // namespace

absl::Status CutModel(const std::string& path, int layers, const std::string& copy) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Load(path));
  if (layers < 1 || layers > model->config().layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers is ", layers, "; ", path, " has ",
                                                   model->config().layers,
                                                   ": it must be from 1 to that"));
  }
  std::error_code missing;
  if (std::filesystem::equivalent(path, copy, missing)) {
    return absl::InvalidArgumentError(absl::StrCat(copy, " is the model itself"));
  }
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : model->file().tensors()) {
    if (LayerOf(tensor.name).value_or(0) < layers) tensors.push_back(&tensor);
  }
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out, OutputFile::Create(copy));
  RF_RETURN_IF_ERROR(WriteCopy(model->file(), tensors, layers, *out));
  RF_RETURN_IF_ERROR(out->Commit());
  const absl::Status checked = CheckCopy(model->file(), tensors, layers, copy);
  if (!checked.ok()) std::filesystem::remove(copy, missing);
  return checked;
}

int RunCutModel(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  std::string path, copy;
  int layers = 1;
  CLI::App app(
      "Copies the first layers of a GGUF model, with its embedding, output head and tokenizer. The "
      "copy computes what the original does up to there, so that real weights and real text can be "
      "run over long prompts in seconds; its answers mean little.",
      "ringfill-cut-model");
  app.add_option("--in", path, "The model, which stays as it is")->type_name("FILE")->required();
  app.add_option("--out", copy, "The copy to write")->type_name("FILE")->required();
  app.add_option("--layers", layers, "How many layers it keeps")
      ->type_name("N")
      ->capture_default_str();
  app.footer(
      "A prompt longer than the model was trained for needs model.max_context_tokens.\n\n"
      "Example:\n"
      "  ringfill-cut-model --in model.gguf --layers 2 --out model-2-layers.gguf\n"
      "  ringfilld --set model.path=model-2-layers.gguf --set model.max_context_tokens=131072\n\n"
      "Exit codes: 0 done, 1 the model cannot be cut, 2 usage.");
  return RunCommand(app, std::move(arguments), out, err, [&]() -> absl::Status {
    RF_RETURN_IF_ERROR(CutModel(path, layers, copy));
    RF_ASSIGN_OR_RETURN(const std::string description, DescribeModel(copy));
    out << "wrote " << copy << ": " << description << "\n";
    return absl::OkStatus();
  });
}

}  // namespace ringfill
