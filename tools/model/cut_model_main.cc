#include <iostream>

#include "tools/model/cut_model.h"

int main(int argc, char** argv) {
  return ringfill::RunCutModel({argv + 1, argv + argc}, std::cout, std::cerr);
}
