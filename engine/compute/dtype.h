// Element types that products and the KV cache compute in.
#pragma once

#include <cstddef>
#include <string_view>

namespace ringfill {

enum class DType { kF32, kBF16 };
inline constexpr int kDTypes = 2;

constexpr size_t DTypeBytes(DType t) { return t == DType::kF32 ? 4 : 2; }
constexpr std::string_view DTypeName(DType t) { return t == DType::kF32 ? "f32" : "bf16"; }

}  // namespace ringfill
