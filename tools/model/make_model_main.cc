#include <iostream>

#include "tools/model/make_model.h"

int main(int argc, char** argv) {
  return ringfill::RunMakeModel({argv + 1, argv + argc}, std::cout, std::cerr);
}
