#include "engine/model/digest.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

Sha256Digest DigestOf(const std::vector<std::byte>& bytes) {
  return ModelDigest(*GgufFile::Parse(bytes, "tiny").value());
}

TEST(ModelDigestTest, SameForEqualFilesOnly) {
  TinyModelOptions options;
  const Sha256Digest digest = DigestOf(BuildTinyModel(options));
  EXPECT_EQ(digest, DigestOf(BuildTinyModel(options)));
  options.seed = 2;  // other weights
  EXPECT_NE(digest, DigestOf(BuildTinyModel(options)));
  options = TinyModelOptions();
  options.rope_base = 10001;  // other metadata
  EXPECT_NE(digest, DigestOf(BuildTinyModel(options)));
}

TEST(ModelDigestTest, EveryTensorCounts) {
  TinyModelOptions options;
  options.width = 32;  // no tensor is larger than a sample
  std::vector<std::byte> bytes = BuildTinyModel(options);
  std::set<Sha256Digest> digests = {DigestOf(bytes)};
  const auto file = GgufFile::Parse(bytes, "tiny").value();
  for (const GgufTensor& tensor : file->tensors()) {
    bytes[tensor.offset] ^= std::byte{1};
    EXPECT_TRUE(digests.insert(DigestOf(bytes)).second) << tensor.name;
    bytes[tensor.offset] ^= std::byte{1};
  }
}

TEST(ModelDigestTest, FileSizeCounts) {
  std::vector<std::byte> bytes = BuildTinyModel(TinyModelOptions());
  const Sha256Digest digest = DigestOf(bytes);
  bytes.push_back(std::byte{0});
  EXPECT_NE(digest, DigestOf(bytes));
}

}  // namespace
}  // namespace ringfill
