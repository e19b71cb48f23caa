#include "cli/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace ringfill::cli {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

TEST(RepairUtf8, LeavesValidTextAlone) {
  const std::string text =
      std::string("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf") +
      std::string(1, '\0') + "end";
  const Utf8Repair repair = RepairUtf8(text);
  EXPECT_EQ(repair.text, text);
  EXPECT_EQ(repair.replacements, 0u);
}

TEST(RepairUtf8, ReplacesMaximalSubparts) {
  // The example of the Unicode Standard, table 3-8.
  const Utf8Repair repair = RepairUtf8("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64");
  const std::string r = kReplacement;
  EXPECT_EQ(repair.text, "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(repair.replacements, 6u);
  EXPECT_EQ(repair.first_offset, 1u);
}

TEST(RepairUtf8, RefusesOverlongSurrogatesAndBeyondTheLastPlane) {
  for (const std::string bad : {"\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xed\xa0\x80",
                                "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5", "\xff"}) {
    const Utf8Repair repair = RepairUtf8("ok" + bad);
    EXPECT_EQ(repair.replacements, bad.size()) << "each byte of it stands alone";
    EXPECT_EQ(repair.first_offset, 2u);
    EXPECT_EQ(RepairUtf8(repair.text).replacements, 0u) << "repaired text is valid";
  }
}

TEST(RepairUtf8, ReplacesACutCharacterAtTheEndOnce) {
  const Utf8Repair repair = RepairUtf8("x\xf0\x9f\x98");
  EXPECT_EQ(repair.text, std::string("x") + kReplacement);
  EXPECT_EQ(repair.replacements, 1u);
}

}  // namespace
}  // namespace ringfill::cli
