// Which geometries the installed cuDNN takes on GPUs of each supported generation, without a GPU:
// usage: cudnn_support_test TABLE. Needs a libcuda.so.1 to load, for which the toolkit's stub does.
// Ends with 77 where cuDNN cannot be asked.
#include "engine/compute/cuda/cudnn_support.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/compute/cuda/fused_work.h"
#include "engine/compute/cuda/workspace.h"

namespace ringfill {
namespace {

constexpr int kSkipped = 77;
constexpr int kLayers = 32;
// A100, H100, B200.
constexpr CudnnGpu kGpus[] = {{80, 108, 166912}, {90, 132, 232448}, {100, 148, 232448}};

// As ranks ask for it: pages of a pool, and shards of one layer.
FusedAttentionOptions OptionsFor(int head_dim, int page_tokens, int kv_heads) {
  const KvGeometry geometry = {
      kLayers, kv_heads, page_tokens,
      2 * static_cast<size_t>(head_dim) * static_cast<size_t>(page_tokens)};
  return {.head_dim = head_dim,
          .kv_heads = kv_heads,
          .page_tokens = page_tokens,
          .entries = FusedEntriesOf(kv_heads),
          .table_pages = kMostTablePages,
          .page_limit = 4 * kMostTablePages,
          .page_strides = {static_cast<int64_t>(geometry.PageBytes()),
                           static_cast<int64_t>(geometry.LayerBytes())}};
}

struct Line {
  int head_dim, page_tokens;
  std::vector<std::string> expected;  // [GPUs] yes or no
};

std::vector<Line> ReadTable(const char* path) {
  std::ifstream file(path);
  std::vector<Line> lines;
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream words(text);
    Line line{};
    words >> line.head_dim >> line.page_tokens;
    for (std::string word; words >> word;) line.expected.push_back(word);
    lines.push_back(std::move(line));
  }
  return lines;
}

int Compare(const std::vector<Line>& table) {
  int wrong = 0, asked = 0;
  for (const Line& line : table) {
    for (size_t g = 0; g < std::size(kGpus); ++g) {
      for (const int kv_heads : {1, 2, 3, 8, 32}) {
        const absl::Status status =
            CheckCudnnAttention(OptionsFor(line.head_dim, line.page_tokens, kv_heads), kGpus[g]);
        ++asked;
        if (!status.ok() && !absl::IsUnimplemented(status)) {
          std::printf("SKIPPED: cuDNN cannot be asked: %s\n", status.ToString().c_str());
          return kSkipped;
        }
        const std::string got = status.ok() ? "yes" : "no";
        if (g < line.expected.size() && got == line.expected[g]) continue;
        ++wrong;
        std::printf("heads of %d, %d of them, pages of %d tokens on sm_%d: %s %s\n", line.head_dim,
                    kv_heads, line.page_tokens, kGpus[g].capability, got.c_str(),
                    status.ToString().c_str());
      }
    }
  }
  std::printf("%d geometries asked for, %d unlike the table\n", asked, wrong);
  return wrong == 0 && asked > 0 ? 0 : 1;
}

}  // namespace
}  // namespace ringfill

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return ringfill::Compare(ringfill::ReadTable(argv[1]));
}
