#include "tests/testing/test_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"

namespace ringfill {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string TestDataPath(const std::string& name) {
  return std::string(RINGFILL_TEST_DATA) + "/" + name;
}

std::string ReadTestData(const std::string& name) {
  std::ifstream in(TestDataPath(name), std::ios::binary);
  RF_CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string TestModelPath() {
  std::string path = Environment("RINGFILL_TEST_MODEL");
  if (path.empty()) {
    std::string cache = Environment("XDG_CACHE_HOME");
    if (cache.empty()) cache = Environment("HOME") + "/.cache";
    path = cache + "/ringfill/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::is_regular_file(path) ? path : "";
}

}  // namespace ringfill
