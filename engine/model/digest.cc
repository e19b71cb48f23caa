#include "engine/model/digest.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace ringfill {

Sha256Digest ModelDigest(const GgufFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  std::vector<uint64_t> offsets;
  for (const GgufTensor& tensor : file.tensors()) offsets.push_back(tensor.offset);
  std::sort(offsets.begin(), offsets.end());
  offsets.push_back(bytes.size());
  Sha256 hash;
  const uint64_t size = bytes.size();
  hash.Add(std::as_bytes(std::span(&size, 1)));
  hash.Add(bytes.first(offsets.front()));
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    // Up to the next tensor: the length whatever the type, padding included.
    const uint64_t length = offsets[i + 1] - offsets[i];
    const uint64_t sample = std::min<uint64_t>(length, kDigestSampleBytes);
    hash.Add(bytes.subspan(offsets[i] + (length - sample) / 2, sample));
  }
  return hash.Finish();
}

}  // namespace ringfill
