#include "server/app/run.h"

int main(int argc, char** argv) { return ringfill::RunDaemon(argc, argv); }
