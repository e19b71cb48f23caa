#!/usr/bin/env bash
# Installs the Debian 12 packages that ringfill needs and that are missing.
#
# Usage: tools/install_dependencies.sh [--test] [--package] [--image] [--list]
#
#   --test      also what only the tests need (clang with libFuzzer, clang-format, a bare Debian)
#   --package   also what makes a Debian package
#   --image     also what builds and runs the container image without a daemon
#   --list      only prints their names
#
# None of them starts a service. What the tests run of packages that would is fetched, not installed
# (tools/fetch_prometheus.sh).
# Runs as root or through sudo. When nothing is missing it asks no network and ends at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=(
  # Tools.
  ca-certificates ccache cmake g++ git ninja-build pkg-config python3 python3-pip
  # gRPC and the wire format.
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  # Products (their CMake package asks for OpenCL), vector kernels, the tokenizer's patterns.
  libdnnl-dev libhwy-dev libpcre2-dev ocl-icd-opencl-dev
  # Digests, and proof between processes.
  libssl-dev
  # Logs, metrics, configuration, JSON, command lines, status types.
  libabsl-dev libcli11-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev prometheus-cpp-dev
  # The presets build the tests too, where GPU threads run as fibers.
  libboost-context-dev libgmock-dev libgtest-dev
)
package_packages=(dpkg-dev file)
test_packages=(
  "${package_packages[@]}"
  clang clang-format curl libclang-rt-14-dev llvm python3-venv shellcheck
  # Of the package: its pages, its rules, a bare Debian that it is installed in.
  groff-base iproute2 lintian man-db mmdebstrap
)
image_packages=(buildah mmdebstrap podman runc)

list=false
for argument in "$@"; do
  case $argument in
    --test) packages+=("${test_packages[@]}") ;;
    --package) packages+=("${package_packages[@]}") ;;
    --image) packages+=("${image_packages[@]}") ;;
    --list) list=true ;;
    -h | --help) show_help ;;
    *) usage_error "unknown argument: $argument" ;;
  esac
done

if $list; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

command -v dpkg-query >/dev/null ||
  die "this system has no dpkg; install what corresponds to: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $status == ii* ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# A list of some other source that cannot be renewed must not stop us; the install tells.
as_root apt-get -q update || say "apt-get update reported an error; trying to go on"
as_root env DEBIAN_FRONTEND=noninteractive \
  apt-get -q install -y --no-install-recommends "${missing[@]}"
