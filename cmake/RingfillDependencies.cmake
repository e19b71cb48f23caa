# External packages. Each is listed with its reason in docs/ARCHITECTURE.md.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(absl REQUIRED)
find_package(spdlog REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(dnnl REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)

if(RINGFILL_BUILD_SERVER)
  # Protobuf before gRPC: gRPC's package file refers to its targets.
  find_package(Protobuf REQUIRED)
  find_package(gRPC REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_package(CLI11 REQUIRED)
  find_program(RINGFILL_PROTOC protoc REQUIRED)
  find_program(RINGFILL_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
endif()
if(RINGFILL_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
