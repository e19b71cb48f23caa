// Where tests find files that are not built: recorded data of the tree, and the test model.
#pragma once

#include <string>

namespace ringfill {

// A file of tests/data.
std::string TestDataPath(const std::string& name);
std::string ReadTestData(const std::string& name);

// SmolLM2-135M-Instruct.Q4_1.gguf: RINGFILL_TEST_MODEL, or the quickstart's cache. Empty when it is
// not there: tests then skip, visibly.
std::string TestModelPath();

}  // namespace ringfill
