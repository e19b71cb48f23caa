#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"

int main(int argc, char** argv) {
  ringfill::cli::Console console = ringfill::cli::StandardConsole();
  return ringfill::cli::RunApp(std::vector<std::string>(argv + 1, argv + argc), console);
}
