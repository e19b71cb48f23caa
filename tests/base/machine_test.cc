#include "base/machine.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace ringfill {
namespace {

// A proc/ and sys/ of its own.
class GroupMemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "machine_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~GroupMemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::optional<int64_t> Limit() const { return GroupMemoryLimit(root_); }

 private:
  std::filesystem::path root_;
};

TEST_F(GroupMemoryLimitTest, ASystemWithoutGroupsHasNone) {
  EXPECT_EQ(Limit(), std::nullopt);
  Write("proc/self/cgroup", "nonsense\n0:\n:::::\n");
  EXPECT_EQ(Limit(), std::nullopt);
}

TEST_F(GroupMemoryLimitTest, TheLeastOfAGroupAndThoseAboveIt) {
  Write("proc/self/cgroup", "0::/system.slice/ringfilld.service\n");
  EXPECT_EQ(Limit(), std::nullopt);
  Write("sys/fs/cgroup/system.slice/ringfilld.service/memory.max", "max\n");
  EXPECT_EQ(Limit(), std::nullopt);
  Write("sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
  EXPECT_EQ(Limit(), 8589934592);
  Write("sys/fs/cgroup/system.slice/ringfilld.service/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), 1073741824);
  Write("sys/fs/cgroup/other/memory.max", "4096\n");
  EXPECT_EQ(Limit(), 1073741824);
}

// The path is the host's, but the group is mounted as the root.
TEST_F(GroupMemoryLimitTest, AContainersOwnGroup) {
  Write("proc/self/cgroup", "0::/kubepods/burstable/pod7/3f\n");
  Write("sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(Limit(), 2147483648);
}

TEST_F(GroupMemoryLimitTest, TheFirstVersion) {
  Write("proc/self/cgroup", "9:name=systemd:/a\n3:cpu,memory:/docker/3f\n2:pids:/b\n0::/c\n");
  Write("sys/fs/cgroup/memory/docker/3f/memory.limit_in_bytes", "3221225472\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(Limit(), 3221225472);
}

TEST(UsableMemoryTest, IsSomeAndNoMoreThanTheMachines) {
  EXPECT_GT(UsableMemory(), 0);
  EXPECT_LE(UsableMemory(), static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace ringfill
