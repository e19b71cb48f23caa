#include "engine/schedule/documents.h"

#include <algorithm>
#include <limits>

namespace ringfill {

Span DocumentAt(std::span<const int64_t> starts, int64_t position) {
  const auto next = std::upper_bound(starts.begin(), starts.end(), position);
  return {next == starts.begin() ? 0 : *(next - 1),
          next == starts.end() ? std::numeric_limits<int64_t>::max() : *next};
}

std::vector<int64_t> StartsOf(std::span<const int64_t> starts, std::span<const Span> spans) {
  std::vector<int64_t> out;
  for (const Span& span : spans) {
    for (int64_t p = span.begin; p < span.end;) {
      const Span document = DocumentAt(starts, p);
      if (out.empty() || out.back() != document.begin) out.push_back(document.begin);
      p = document.end;
    }
  }
  if (out.size() == 1 && out.front() == 0) out.clear();
  return out;
}

PageRange PagesSeen(const PrefillChunk& chunk, const Placement& placement, int rank,
                    int64_t page_tokens) {
  const int64_t start = DocumentStart(chunk.document_starts, chunk.begin());
  const int64_t first = start == 0 ? 0 : placement.TokensBefore(rank, start) / page_tokens;
  return {first, placement.PagesBefore(rank, chunk.end(), static_cast<int>(page_tokens)) - first};
}

}  // namespace ringfill
