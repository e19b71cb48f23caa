// How the memory of a GPU is dealt out, and what is said when it does not suffice.
#include "engine/compute/cuda/memory_plan.h"

#include <memory>

#include "engine/compute/cuda/workspace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/load_model.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using testing::HasSubstr;

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() {
    TinyModelOptions tiny;
    tiny.layers = 6;
    tiny.head_dim = 64;
    tiny.tied = false;
    tiny.SetMatrixTypes(WeightType::kQ4_1);
    model_ = LoadModelOrDie(WriteTinyModel(tiny));
    bytes_ = CudaWeightBytes::Of(*model_);
    options_.device = "device 3 (Testing)";
    options_.page_tokens = 16;
    options_.chunk_tokens = 256;
    const CudaMemoryPlan plan = Plan(size_t{1} << 40);
    scratch_ = plan.workspace_bytes + plan.library_bytes;
    page_ = CudaKvGeometry(model_->config(), 16).PageBytes();
  }

  CudaMemoryPlan Plan(size_t free_bytes) {
    options_.free_bytes = free_bytes;
    const auto plan = PlanCudaMemory(*model_, options_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : CudaMemoryPlan{};
  }
  std::string Refused(size_t free_bytes) {
    options_.free_bytes = free_bytes;
    const auto plan = PlanCudaMemory(*model_, options_);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
    return std::string(plan.status().message());
  }

  std::shared_ptr<const Model> model_;
  CudaWeightBytes bytes_;
  CudaMemoryOptions options_;
  size_t scratch_ = 0, page_ = 0;
};

TEST_F(MemoryPlanTest, WeightsAreExpandedWhereThereIsRoom) {
  const CudaMemoryPlan roomy = Plan(scratch_ + (size_t{1} << 30));
  EXPECT_EQ(roomy.weights.expanded_layers, 6);
  EXPECT_TRUE(roomy.weights.expanded_output);
  options_.expanded_weight_bytes = static_cast<int64_t>(3 * bytes_.expanded_layer);
  const CudaMemoryPlan three = Plan(scratch_ + (size_t{1} << 30));
  EXPECT_EQ(three.weights.expanded_layers, 3);
  // Five layers are left as stored, in two places.
  EXPECT_EQ(three.weight_bytes, 3 * bytes_.expanded_layer + 5 * bytes_.stored_layer +
                                    bytes_.embedding + bytes_.expanded_output + bytes_.norms);
  options_.expanded_weight_bytes = 1;
  EXPECT_EQ(Plan(scratch_ + (size_t{1} << 30)).weights.expanded_layers, 2);
}

TEST_F(MemoryPlanTest, PagesTakeTheirPartOfWhatIsLeft) {
  for (const double fraction : {0.25, 1.0}) {
    options_.kv_memory_fraction = fraction;
    const size_t free_bytes = scratch_ + (size_t{1} << 30);
    const CudaMemoryPlan plan = Plan(free_bytes);
    const auto left = static_cast<double>(free_bytes - plan.weight_bytes - scratch_);
    EXPECT_NEAR(static_cast<double>(plan.pages), fraction * left / static_cast<double>(page_), 1);
  }
  options_.kv_memory_bytes = static_cast<int64_t>(10 * page_);
  EXPECT_EQ(Plan(scratch_ + (size_t{1} << 30)).pages, 10);
}

// What a ring of 8 was seen to take, and code of kernels beside it.
TEST_F(MemoryPlanTest, LibrariesAreLeftTheirPart) {
  const size_t alone = Plan(size_t{1} << 40).library_bytes;
  EXPECT_GE(alone, size_t{256} << 20);
  options_.kv_memory_fraction = 1;
  size_t before = alone;
  for (const int ranks : {2, 4, 8}) {
    options_.ranks = ranks;
    const size_t free_bytes = size_t{40} << 30;
    const CudaMemoryPlan plan = Plan(free_bytes);
    EXPECT_GT(plan.library_bytes, before);
    before = plan.library_bytes;
    EXPECT_LE(plan.weight_bytes + plan.workspace_bytes + static_cast<size_t>(plan.pages) * page_,
              free_bytes - plan.library_bytes);
  }
  EXPECT_GE(before, alone + (size_t{33} << 30) / 10);
  options_.ranks = 64;
  EXPECT_EQ(Plan(size_t{40} << 30).library_bytes, before);
}

TEST_F(MemoryPlanTest, WhatDoesNotFitIsToldWithTheNumbers) {
  const std::string none = Refused(scratch_);
  EXPECT_THAT(none, HasSubstr("the model does not fit"));
  EXPECT_THAT(none, HasSubstr("device 3 (Testing)"));
  EXPECT_THAT(none, HasSubstr(", libraries 512 MiB, "));
  EXPECT_THAT(none, HasSubstr("the largest context that fits is 0 tokens"));
  const size_t smallest = bytes_.Total(6, {2, false}) + scratch_;
  Refused(smallest + page_ - 1);
  options_.kv_memory_fraction = 1;
  EXPECT_GE(Plan(smallest + page_).pages, 1);
  options_.max_context_tokens = 1 << 20;
  EXPECT_THAT(Refused(smallest + 10 * page_), HasSubstr("model.max_context_tokens is 1048576"));
  options_.max_context_tokens = 0;
  options_.kv_memory_bytes = int64_t{1} << 40;
  EXPECT_THAT(Refused(scratch_ + (size_t{1} << 30)), HasSubstr("kv.memory_bytes"));
}

}  // namespace
}  // namespace ringfill
