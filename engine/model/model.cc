#include "engine/model/model.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/model_config.h"
#include "engine/model/quote.h"

namespace ringfill {
namespace {

// Takes tensors out of a file by name and remembers which were taken.
class TensorReader {
 public:
  explicit TensorReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<WeightMatrix> Matrix(const std::string& name, int64_t rows, int64_t cols) {
    RF_ASSIGN_OR_RETURN(const GgufTensor* tensor, Take(name));
    RF_RETURN_IF_ERROR(CheckShape(*tensor, 2, rows, cols));
    const std::optional<WeightType> type = WeightTypeFromGguf(tensor->type_id);
    if (!type) return UnsupportedType(*tensor, SupportedWeightTypes());
    return WeightMatrix{*type, file_.bytes().data() + tensor->offset, rows, cols};
  }

  absl::StatusOr<std::vector<float>> Vector(const std::string& name, int64_t n) {
    RF_ASSIGN_OR_RETURN(const GgufTensor* tensor, Take(name));
    RF_RETURN_IF_ERROR(CheckShape(*tensor, 1, 1, n));
    const std::optional<WeightType> type = WeightTypeFromGguf(tensor->type_id);
    if (!type || GetWeightTypeInfo(*type).needs_quantized_dot) {
      return UnsupportedType(*tensor, "F32, F16, BF16");
    }
    std::vector<float> values(static_cast<size_t>(n));
    DequantizeRow(*type, file_.bytes().data() + tensor->offset, n, values.data());
    if (!AllFinite(values.data(), n)) {
      return file_.Error(absl::StrCat("tensor ", name, " holds a value that is not finite"));
    }
    return values;
  }

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  // Refuses tensors that nothing took: a part of the model that would be ignored.
  absl::Status CheckAllTaken() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.contains(tensor.name)) continue;
      const bool bias = tensor.name.ends_with(".bias");
      return file_.Error(absl::StrCat("tensor ", Printable(tensor.name),
                                      " is not part of a llama model as supported here",
                                      bias ? ": biases are not supported" : ""));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const GgufTensor*> Take(const std::string& name) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return file_.Error(absl::StrCat("tensor ", name, " is missing"));
    taken_.insert(tensor->name);
    return tensor;
  }

  absl::Status CheckShape(const GgufTensor& tensor, int dims, int64_t rows, int64_t cols) const {
    const auto want_rows = static_cast<uint64_t>(rows);
    const auto want_cols = static_cast<uint64_t>(cols);
    if (tensor.shape[0] == want_cols && tensor.shape[1] == want_rows && tensor.shape[2] == 1 &&
        tensor.shape[3] == 1) {
      return absl::OkStatus();
    }
    std::string shape;
    for (int d = 0; d < tensor.dims; ++d) {
      absl::StrAppend(&shape, d == 0 ? "" : ", ", tensor.shape[d]);
    }
    const std::string want = dims == 1 ? absl::StrCat(cols) : absl::StrCat(cols, ", ", rows);
    return file_.Error(absl::StrCat("tensor ", Printable(tensor.name), " has shape [", shape,
                                    "], the metadata asks for [", want, "]"));
  }

  absl::Status UnsupportedType(const GgufTensor& tensor, const std::string& supported) const {
    return file_.Error(absl::StrCat("tensor ", Printable(tensor.name), " has type ",
                                    GgufTypeName(tensor.type_id), "; supported: ", supported));
  }

  const GgufFile& file_;
  std::unordered_set<std::string_view> taken_;
};

absl::StatusOr<LayerWeights> ReadLayer(TensorReader& reader, const ModelConfig& config, int layer) {
  const std::string prefix = absl::StrCat("blk.", layer, ".");
  const int64_t width = config.width, ffn = config.ffn_width;
  const int64_t q_width = config.q_width(), kv_width = config.kv_width();
  LayerWeights w;
  RF_ASSIGN_OR_RETURN(w.attention_norm, reader.Vector(prefix + "attn_norm.weight", width));
  RF_ASSIGN_OR_RETURN(w.q, reader.Matrix(prefix + "attn_q.weight", q_width, width));
  RF_ASSIGN_OR_RETURN(w.k, reader.Matrix(prefix + "attn_k.weight", kv_width, width));
  RF_ASSIGN_OR_RETURN(w.v, reader.Matrix(prefix + "attn_v.weight", kv_width, width));
  RF_ASSIGN_OR_RETURN(w.o, reader.Matrix(prefix + "attn_output.weight", width, q_width));
  RF_ASSIGN_OR_RETURN(w.ffn_norm, reader.Vector(prefix + "ffn_norm.weight", width));
  RF_ASSIGN_OR_RETURN(w.gate, reader.Matrix(prefix + "ffn_gate.weight", ffn, width));
  RF_ASSIGN_OR_RETURN(w.up, reader.Matrix(prefix + "ffn_up.weight", ffn, width));
  RF_ASSIGN_OR_RETURN(w.down, reader.Matrix(prefix + "ffn_down.weight", width, ffn));
  return w;
}

absl::StatusOr<std::vector<float>> ReadRopeFactors(const GgufFile& file, TensorReader& reader,
                                                   int rope_dims) {
  const std::string name = "rope_freqs.weight";
  if (!reader.Has(name)) return std::vector<float>();
  RF_ASSIGN_OR_RETURN(std::vector<float> factors, reader.Vector(name, rope_dims / 2));
  if (std::any_of(factors.begin(), factors.end(), [](float f) { return f <= 0; })) {
    return file.Error(absl::StrCat("tensor ", name, " holds a factor that is not positive"));
  }
  return factors;
}

size_t StoredBytes(const GgufTensor& tensor, WeightType type) {
  return WeightRowBytes(type, static_cast<int64_t>(tensor.shape[0])) * tensor.shape[1] *
         tensor.shape[2] * tensor.shape[3];
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const std::string& path) {
  RF_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return FromGguf(std::move(file));
}

absl::StatusOr<std::unique_ptr<Model>> Model::FromGguf(std::unique_ptr<GgufFile> file) {
  std::unique_ptr<Model> model(new Model());
  RF_ASSIGN_OR_RETURN(model->config_, ReadModelConfig(*file));
  ModelConfig& config = model->config_;
  TensorReader reader(*file);
  RF_ASSIGN_OR_RETURN(model->embedding_,
                      reader.Matrix("token_embd.weight", config.vocab, config.width));
  model->output_ = model->embedding_;
  if (reader.Has("output.weight")) {
    RF_ASSIGN_OR_RETURN(model->output_, reader.Matrix("output.weight", config.vocab, config.width));
  }
  RF_ASSIGN_OR_RETURN(model->output_norm_, reader.Vector("output_norm.weight", config.width));
  for (int layer = 0; layer < config.layers; ++layer) {
    RF_ASSIGN_OR_RETURN(LayerWeights weights, ReadLayer(reader, config, layer));
    model->layers_.push_back(std::move(weights));
  }
  RF_ASSIGN_OR_RETURN(config.rope.factors, ReadRopeFactors(*file, reader, config.rope.rope_dims));
  RF_RETURN_IF_ERROR(reader.CheckAllTaken());

  std::map<WeightType, int> counts;
  for (const GgufTensor& tensor : file->tensors()) {
    const std::optional<WeightType> type = WeightTypeFromGguf(tensor.type_id);
    ++counts[*type];
    model->weight_bytes_ += StoredBytes(tensor, *type);
  }
  std::vector<std::pair<WeightType, int>> by_count(counts.begin(), counts.end());
  std::stable_sort(by_count.begin(), by_count.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [type, count] : by_count) {
    std::string& summary = model->weight_summary_;
    absl::StrAppend(&summary, summary.empty() ? "" : ", ",
                    std::string(GetWeightTypeInfo(type).name), " (", count,
                    summary.empty() ? " tensors)" : ")");
  }
  model->file_ = std::move(file);
  return model;
}

}  // namespace ringfill
