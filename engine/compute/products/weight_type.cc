#include "engine/compute/products/weight_type.h"

#include <array>

#include "base/check.h"

namespace ringfill {
namespace {

// Indexed by WeightType.
constexpr std::array<WeightTypeInfo, 6> kTypes = {{
    {WeightType::kF32, "F32", 0, 1, 4, false},
    {WeightType::kF16, "F16", 1, 1, 2, false},
    {WeightType::kBF16, "BF16", 30, 1, 2, false},
    {WeightType::kQ4_0, "Q4_0", 2, 32, 18, true},
    {WeightType::kQ4_1, "Q4_1", 3, 32, 20, true},
    {WeightType::kQ8_0, "Q8_0", 8, 32, 34, true},
}};

// ggml_type numbers; empty where a number was never used or has been withdrawn.
constexpr std::array<std::string_view, 40> kGgufNames = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16",  "",
    "",        "",       "TQ1_0",   "TQ2_0", "",       "",      "",      "MXFP4"};

}  // namespace

const WeightTypeInfo& GetWeightTypeInfo(WeightType type) {
  const auto index = static_cast<size_t>(type);
  RF_CHECK(index < kTypes.size() && kTypes[index].type == type);
  return kTypes[index];
}

std::optional<WeightType> WeightTypeFromGguf(uint32_t gguf_id) {
  for (const WeightTypeInfo& info : kTypes) {
    if (info.gguf_id == gguf_id) return info.type;
  }
  return std::nullopt;
}

std::string GgufTypeName(uint32_t gguf_id) {
  if (gguf_id < kGgufNames.size() && !kGgufNames[gguf_id].empty()) {
    return std::string(kGgufNames[gguf_id]);
  }
  return "type " + std::to_string(gguf_id);
}

std::string SupportedWeightTypes() {
  std::string out;
  for (const WeightTypeInfo& info : kTypes) {
    if (!out.empty()) out += ", ";
    out += info.name;
  }
  return out;
}

size_t WeightRowBytes(WeightType type, int64_t n) {
  const WeightTypeInfo& info = GetWeightTypeInfo(type);
  RF_DCHECK(n >= 0 && n % info.block_weights == 0);
  return static_cast<size_t>(n / info.block_weights) * info.block_bytes;
}

}  // namespace ringfill
