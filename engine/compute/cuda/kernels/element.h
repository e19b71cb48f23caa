// Device code: loads and stores of one element of a type known at run time or by template.
#pragma once

#include "engine/compute/cuda/device_code.h"
#include "engine/compute/cuda/kernels/types.h"

namespace ringfill::gpu {

RF_DEVICE float Widen(float v) { return v; }

template <typename T>
RF_DEVICE void StoreElement(T* to, float v) {
  *to = Narrow<T>(v);
}
template <>
RF_DEVICE void StoreElement<float>(float* to, float v) {
  *to = v;
}

// Calls function<T>(arguments...) for the type that `type` names.
#define RF_FOR_ELEMENT(type, function, ...)                  \
  ((type) == Element::kF32    ? function<float>(__VA_ARGS__) \
   : (type) == Element::kBF16 ? function<Bf16>(__VA_ARGS__)  \
                              : function<F16>(__VA_ARGS__))

}  // namespace ringfill::gpu
