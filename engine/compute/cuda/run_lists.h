// The pages of several runs as one table, as attention on a GPU takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/batch.h"
#include "engine/compute/cuda/kernels/attention.h"

namespace ringfill {

struct RunLists {
  // `in_shard`: a run without pages has them one after the other from its offset on.
  RunLists(const std::vector<KvRun>& runs, bool in_shard) {
    for (const KvRun& run : runs) {
      gpu::KvRunView view;
      if (in_shard) view.offset = static_cast<int64_t>(run.shard_offset);
      if (!in_shard || !run.pages.empty()) {
        view.first_page = static_cast<int64_t>(pages.size());
      }
      views.push_back(view);
      pages.insert(pages.end(), run.pages.begin(), run.pages.end());
    }
  }

  std::vector<gpu::KvRunView> views;  // [runs]
  std::vector<uint32_t> pages;
};

}  // namespace ringfill
