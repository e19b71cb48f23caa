#include "engine/compute/cuda/cuda_api.h"
#include "engine/compute/cuda/kernels/plain_product.h"
#include "engine/compute/cuda/products.h"

namespace ringfill {
namespace {

class PlainProducts final : public Products {
 public:
  explicit PlainProducts(int device) : device_(device) {}

  absl::Status Run(const Product& p, cudaStream_t stream) override {
    return LaunchStatus(gpu::PlainProduct({.w = p.w,
                                           .ldw = p.ldw,
                                           .x = p.x,
                                           .ldx = p.ldx,
                                           .rows = p.rows,
                                           .n = p.n,
                                           .k = p.k,
                                           .y_type = p.y_type,
                                           .y = p.y,
                                           .ldy = p.ldy},
                                          stream),
                        "PlainProduct", device_);
  }

 private:
  const int device_;
};

}  // namespace

std::unique_ptr<Products> MakePlainProducts(int device) {
  return std::make_unique<PlainProducts>(device);
}

}  // namespace ringfill
