// Which model a file holds, so that processes which each opened a file of their own can tell
// whether it is the same.
#pragma once

#include "base/sha256.h"
#include "engine/model/gguf_file.h"

namespace ringfill {

// SHA-256 over everything before the first tensor's data (header, metadata, tensor list), the
// file's size, and the middle kDigestSampleBytes of every tensor: a file of tens of gigabytes costs
// some hundred reads. Files that differ elsewhere in a tensor alone have equal digests: it tells
// models apart, it does not find damage.
inline constexpr size_t kDigestSampleBytes = 64 << 10;
Sha256Digest ModelDigest(const GgufFile& file);

}  // namespace ringfill
