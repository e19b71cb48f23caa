// How the memory of a GPU is dealt out, and what is said when it does not suffice.
#include "engine/compute/cuda/memory_plan.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compute/cuda/workspace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/load_model.h"
#include "tests/testing/test_files.h"
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

// A model of this shape in Q8_0 without its weights: the embedding and all other tensors are holes
// of a file, which begin at two places, since an output head at the embedding's place would be
// tied.
std::shared_ptr<const Model> HollowModel(const TinyModelOptions& o) {
  GgufWriter writer;
  AddTinyMetadata(o, writer);
  const auto add = [&writer](const std::string& name, int rows, int cols, size_t bytes = 0) {
    const uint32_t type = GetWeightTypeInfo(WeightType::kQ8_0).gguf_id;
    writer.AddTensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)}, type,
                     std::vector<std::byte>(bytes));
  };
  const auto add_norm = [&](const std::string& name) {
    writer.AddTensor(name, {static_cast<uint64_t>(o.width)}, 0, {});
  };
  const int q = o.heads * o.head_dim, kv = o.kv_heads * o.head_dim;
  add("token_embd.weight", o.vocab, o.width, 32);
  if (!o.tied) add("output.weight", o.vocab, o.width);
  add_norm("output_norm.weight");
  for (int l = 0; l < o.layers; ++l) {
    const std::string layer = absl::StrCat("blk.", l, ".");
    for (const char* norm : {"attn_norm.weight", "ffn_norm.weight"}) add_norm(layer + norm);
    add(layer + "attn_q.weight", q, o.width);
    add(layer + "attn_k.weight", kv, o.width);
    add(layer + "attn_v.weight", kv, o.width);
    add(layer + "attn_output.weight", o.width, q);
    add(layer + "ffn_gate.weight", o.ffn_width, o.width);
    add(layer + "ffn_up.weight", o.ffn_width, o.width);
    add(layer + "ffn_down.weight", o.width, o.ffn_width);
  }
  const std::string path = testing::TempDir() + "hollow.gguf";
  const std::vector<std::byte> bytes = writer.Build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<ptrdiff_t>(bytes.size()));
  std::filesystem::resize_file(path, uintmax_t{2} << 30);
  std::shared_ptr<const Model> model = LoadModelOrDie(path);
  std::filesystem::remove(path);
  return model;
}

// tools/write_sizing.py works the tables of docs/SIZING.md out by the same formula.
TEST(SizingDocumentTest, ItsGpuPlansAreTheEngines) {
  std::istringstream lines(ReadTestData("gpu_memory_plans.txt"));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    SCOPED_TRACE(line);
    std::istringstream in(line);
    TinyModelOptions shape;
    CudaMemoryOptions options;
    CudaMemoryPlan wanted;
    options.gather_bytes = size_t{256} << 20;
    in >> shape.layers >> shape.width >> shape.heads >> shape.kv_heads >> shape.head_dim >>
        shape.ffn_width >> shape.vocab >> shape.tied >> options.free_bytes >> options.ranks >>
        wanted.weight_bytes >> wanted.workspace_bytes >> wanted.library_bytes >> wanted.pages;
    ASSERT_FALSE(in.fail());
    const auto plan = PlanCudaMemory(*HollowModel(shape), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->weight_bytes, wanted.weight_bytes);
    EXPECT_EQ(plan->workspace_bytes, wanted.workspace_bytes);
    EXPECT_EQ(plan->library_bytes, wanted.library_bytes);
    EXPECT_EQ(plan->pages, wanted.pages);
    ++count;
  }
  EXPECT_GT(count, 40);
}

}  // namespace
}  // namespace ringfill
