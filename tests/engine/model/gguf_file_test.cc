#include "engine/model/gguf_file.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_fields.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/tiny_model.h"

namespace ringfill {
namespace {

using ::testing::HasSubstr;

absl::Status ParseStatus(const std::vector<std::byte>& bytes) {
  return GgufFile::Parse(bytes, "x.gguf").status();
}

void ExpectRefused(const std::vector<std::byte>& bytes, const std::string& part) {
  const absl::Status status = ParseStatus(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.gguf: "));
}

std::vector<std::byte> FourFloats() { return std::vector<std::byte>(16); }

template <typename T>
std::string Encoded(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST(GgufFile, ReadsEveryKindOfValue) {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter writer(version);
    writer.AddUint32("u32", 7);
    writer.AddUint64("u64", std::numeric_limits<uint64_t>::max());
    writer.AddInt32("i32", -3);
    writer.AddRaw("u8", 0, Encoded<uint8_t>(200));
    writer.AddRaw("i8", 1, Encoded<int8_t>(-100));
    writer.AddRaw("u16", 2, Encoded<uint16_t>(40000));
    writer.AddRaw("i16", 3, Encoded<int16_t>(-30000));
    writer.AddRaw("i64", 11, Encoded<int64_t>(5));
    writer.AddFloat32("f32", 1.5f);
    writer.AddRaw("f64", 12, Encoded(2.25));
    writer.AddBool("bool", true);
    writer.AddString("string", "text");
    writer.AddStrings("strings", {"a", "", "ccc"});
    writer.AddInts("ints", {1, -2, 3});
    writer.AddTensor("t", {2, 2}, 0, FourFloats());
    const std::vector<std::byte> bytes = writer.Build();
    const auto parsed = GgufFile::Parse(bytes, "x.gguf");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const GgufFile& file = **parsed;
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.path(), "x.gguf");
    EXPECT_EQ(*file.GetUint("u32"), 7u);
    EXPECT_EQ(*file.GetUint("u64"), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(*file.GetUint("u8"), 200u);
    EXPECT_EQ(*file.GetUint("u16"), 40000u);
    EXPECT_EQ(*file.GetUint("i64"), 5u);
    EXPECT_EQ(std::get<int64_t>(*file.FindValue("i8")), -100);
    EXPECT_EQ(std::get<int64_t>(*file.FindValue("i16")), -30000);
    EXPECT_EQ(*file.GetFloat("f32", 0), 1.5);
    EXPECT_EQ(*file.GetFloat("f64", 0), 2.25);
    EXPECT_EQ(*file.GetBool("bool", false), true);
    EXPECT_EQ(*file.GetString("string"), "text");
    EXPECT_EQ(*file.GetStrings("strings"), (std::vector<std::string_view>{"a", "", "ccc"}));
    EXPECT_EQ(*file.GetInts("ints"), (std::vector<int64_t>{1, -2, 3}));
    ASSERT_EQ(file.tensors().size(), 1u);
    const GgufTensor* tensor = file.FindTensor("t");
    ASSERT_EQ(tensor, &file.tensors()[0]);
    EXPECT_EQ(tensor->dims, 2);
    EXPECT_EQ(tensor->offset + 16, (bytes.size() + 15) / 32 * 32 - 16);
    EXPECT_EQ(file.FindTensor("u"), nullptr);
  }
}

TEST(GgufFile, TypedAccessNamesWhatIsWrong) {
  GgufWriter writer;
  writer.AddInt32("negative", -3);
  writer.AddString("string", "text");
  writer.AddRaw("huge", 9, Encoded<uint32_t>(10) + Encoded<uint64_t>(1) + Encoded(~uint64_t{0}));
  const std::vector<std::byte> bytes = writer.Build();
  const auto file = GgufFile::Parse(bytes, "x.gguf");
  ASSERT_TRUE(file.ok());
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message((*file)->GetUint("absent")), "x.gguf: metadata value absent is missing");
  EXPECT_EQ(*(*file)->GetUint("absent", 9), 9u);
  EXPECT_THAT(message((*file)->GetUint("negative", 9)), HasSubstr("not an unsigned integer"));
  EXPECT_THAT(message((*file)->GetUint("string")), HasSubstr("string is not an unsigned"));
  EXPECT_THAT(message((*file)->GetFloat("string", 0)), HasSubstr("not a floating-point"));
  EXPECT_THAT(message((*file)->GetBool("string", false)), HasSubstr("not a boolean"));
  EXPECT_THAT(message((*file)->GetString("negative", "")), HasSubstr("not a string"));
  EXPECT_THAT(message((*file)->GetStrings("string")), HasSubstr("not an array of strings"));
  EXPECT_THAT(message((*file)->GetInts("string")), HasSubstr("not an array of integers"));
  EXPECT_THAT(message((*file)->GetInts("huge")), HasSubstr("63 bits"));
}

TEST(GgufFile, OpensFilesAndSaysWhyNot) {
  const std::string path = WriteTinyModel(TinyModelOptions());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->bytes().size(), std::filesystem::file_size(path));
  EXPECT_EQ(GgufFile::Open("/nonexistent/x.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(GgufFile::Open("/nonexistent/x.gguf").status().message()),
              HasSubstr("/nonexistent/x.gguf: cannot open"));
  EXPECT_THAT(std::string(GgufFile::Open("/tmp").status().message()),
              HasSubstr("not a regular file"));
  EXPECT_THAT(std::string(GgufFile::Open(WriteTempFile({}, ".gguf")).status().message()),
              HasSubstr("the file is empty"));
}

TEST(GgufFile, RefusesOtherFormatsByName) {
  std::vector<std::byte> bytes = GgufWriter().Build();
  ASSERT_TRUE(ParseStatus(bytes).ok());
  ExpectRefused({}, "magic at offset 0 takes 4 bytes");
  ExpectRefused(GgufWriter(1).Build(), "GGUF version 1; supported: 2 and 3");
  ExpectRefused(GgufWriter(4).Build(), "GGUF version 4; supported: 2 and 3");
  ExpectRefused(GgufWriter(0x03000000).Build(), "big-endian");
  bytes[0] = std::byte{'g'};
  ExpectRefused(bytes, "not a GGUF file");
}

TEST(GgufFile, RefusesWhatTheFormatForbids) {
  GgufWriter twice;
  twice.AddUint32("key", 1);
  twice.AddUint32("key", 1);
  ExpectRefused(twice.Build(), "key occurs twice");
  GgufWriter tensor_twice;
  tensor_twice.AddTensor("t", {4}, 0, FourFloats());
  tensor_twice.AddTensor("t", {4}, 0, FourFloats());
  ExpectRefused(tensor_twice.Build(), "tensor t occurs twice");
  GgufWriter nested;
  nested.AddRaw("n", 9, Encoded<uint32_t>(9) + Encoded<uint64_t>(0));
  ExpectRefused(nested.Build(), "array of arrays");
  GgufWriter unknown;
  unknown.AddRaw("n", 13, "");
  ExpectRefused(unknown.Build(), "unknown type 13");
  GgufWriter unknown_element;
  unknown_element.AddRaw("n", 9, Encoded<uint32_t>(77) + Encoded<uint64_t>(0));
  ExpectRefused(unknown_element.Build(), "unknown element type 77");
  GgufWriter split;
  split.AddRaw("split.count", 2, Encoded<uint16_t>(2));
  ExpectRefused(split.Build(), "split.count is 2: models split over several files");
  GgufWriter unsplit;
  unsplit.AddRaw("split.count", 2, Encoded<uint16_t>(1));
  EXPECT_TRUE(ParseStatus(unsplit.Build()).ok());
}

TEST(GgufFile, RefusesAlignmentsThatAreNotPowersOfTwo) {
  for (uint32_t alignment : {1u, 2u, 64u, 4096u}) {
    GgufWriter writer(3, alignment);
    writer.AddTensor("t", {4}, 0, FourFloats());
    EXPECT_TRUE(ParseStatus(writer.Build()).ok()) << alignment;
  }
  for (uint32_t alignment : {3u, 33u, 48u}) {
    GgufWriter writer(3, alignment);
    writer.AddTensor("t", {4}, 0, FourFloats());
    ExpectRefused(writer.Build(), "not a power of two");
  }
  GgufWriter zero;
  zero.AddUint32("general.alignment", 0);
  ExpectRefused(zero.Build(), "general.alignment is 0");
  GgufWriter huge;
  huge.AddUint64("general.alignment", uint64_t{1} << 63);
  ExpectRefused(huge.Build(), "general.alignment is 9223372036854775808");
}

TEST(GgufFile, ChecksTensorShapesAndExtents) {
  const auto with = [](const std::vector<uint64_t>& shape, uint32_t type, size_t bytes) {
    GgufWriter writer;
    writer.AddTensor("t", shape, type, std::vector<std::byte>(bytes));
    return writer.Build();
  };
  EXPECT_TRUE(ParseStatus(with({32, 2}, 3, 40)).ok());
  ExpectRefused(with({}, 0, 16), "has 0 dimensions");
  ExpectRefused(with({1, 1, 1, 1, 1}, 0, 16), "has 5 dimensions; supported: 1 to 4");
  ExpectRefused(with({4, 0}, 0, 16), "dimension of size 0");
  ExpectRefused(with({uint64_t{1} << 33, uint64_t{1} << 33}, 0, 16), "more elements than fit");
  ExpectRefused(with({uint64_t{1} << 62}, 0, 16), "more elements than fit");
  ExpectRefused(with({uint64_t{1} << 61}, 0, 16), "past the end of the file");
  ExpectRefused(with({9}, 0, 32), "t has 9 blocks of 4 bytes");
  ExpectRefused(with({33}, 3, 64), "rows of 33 weights, not a multiple of the block of 32");
  // One block more than there is, for each type.
  ExpectRefused(with({96}, 2, 32), "past the end of the file");
  ExpectRefused(with({17}, 1, 32), "past the end of the file");
  ExpectRefused(with({17}, 30, 32), "past the end of the file");
  ExpectRefused(with({64}, 8, 64), "past the end of the file");
  // A type that is not read is only listed; using it is the reader's business.
  EXPECT_TRUE(ParseStatus(with({1 << 20}, 12, 32)).ok());
}

TEST(GgufFile, RefusesOffsetsOffTheAlignment) {
  GgufWriter writer;
  writer.AddTensor("t", {4}, 0, std::vector<std::byte>(64));
  std::vector<std::byte> bytes = writer.Build();
  size_t header_bytes = 0;
  const GgufField offset = ListGgufFields(bytes, &header_bytes).back();
  ASSERT_EQ(offset.what, "tensor 0 offset");
  bytes[offset.offset] = std::byte{32};
  EXPECT_TRUE(ParseStatus(bytes).ok());
  bytes[offset.offset] = std::byte{16};
  ExpectRefused(bytes, "t has offset 16, not a multiple of the alignment 32");
}

// Without tensors nothing after the metadata would notice a value that lacks its last byte.
TEST(GgufFile, RefusesValuesThatPassTheEnd) {
  const auto check = [](const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer;
    add(writer);
    std::vector<std::byte> bytes = writer.Build();
    size_t header_bytes = 0;
    ListGgufFields(bytes, &header_bytes);
    bytes.resize(header_bytes);
    EXPECT_TRUE(ParseStatus(bytes).ok());
    while (!bytes.empty()) {
      bytes.pop_back();
      EXPECT_FALSE(ParseStatus(bytes).ok()) << bytes.size();
    }
  };
  check([](GgufWriter& w) { w.AddString("k", "value"); });
  check([](GgufWriter& w) { w.AddUint64("k", 1); });
  check([](GgufWriter& w) { w.AddBool("k", true); });
  check([](GgufWriter& w) { w.AddInts("k", {1, 2, 3}); });
  check([](GgufWriter& w) { w.AddStrings("k", {"a", "bc"}); });
}

TEST(GgufFile, ErrorsHoldNoRawBytesOfTheFile) {
  GgufWriter writer;
  const std::string key = std::string("a\n\x1b[31m\xff", 8) + std::string(500, 'k');
  writer.AddUint32(key, 1);
  writer.AddUint32(key, 1);
  const std::string message(ParseStatus(writer.Build()).message());
  EXPECT_THAT(message, HasSubstr("a\\n\\033[31m\\xff"));
  EXPECT_LT(message.size(), 200u);
  for (char c : message) EXPECT_TRUE(c >= ' ' && c <= '~');
}

}  // namespace
}  // namespace ringfill
