#!/usr/bin/env bash
# Builds the Debian package, and prints its path.
#
# Usage: tools/package.sh [--tree DIR] [--no-install]
#
#   --tree DIR     packs this build tree, built already, instead of a tree of its own
#   --no-install   does not ask apt for what the build needs, and fails where that is missing
#
# That tree is build/package: optimised, without CUDA, so that the package depends on nothing of
# NVIDIA's. One with CUDA comes from --tree; libraries that are of no Debian package are not among its
# dependencies.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tree=
install=true
while [[ $# -gt 0 ]]; do
  case $1 in
    --tree)
      [[ $# -ge 2 ]] || usage_error "--tree needs a value"
      tree=$2
      shift
      ;;
    --no-install) install=false ;;
    -h | --help) show_help ;;
    *) usage_error "unknown argument: $1" ;;
  esac
  shift
done

if $install; then "$root/tools/install_dependencies.sh" --package; fi
if [[ -z $tree ]]; then
  tree=$root/build/package
  build package ringfilld ringfill ringfill_packaging
fi
[[ -f $tree/CPackConfig.cmake ]] || die "$tree is no build tree with packaging"
tree=$(cd "$tree" && pwd)

log=$tree/cpack.log
(cd "$tree" && cpack -G DEB >"$log" 2>&1) || {
  cat "$log" >&2
  die "cpack failed"
}
sed -n 's/^CPack: - package: \(.*\) generated\.$/\1/p' "$log"
