#!/usr/bin/env bash
# Installs what the Dockerfile's build stage needs: Debian's packages and, with VARIANT=cuda, NVIDIA's from PyPI,
# into /opt/nvidia.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

"$here/../../tools/install_dependencies.sh" --package
[[ $VARIANT == cuda ]] || exit 0

# Into a folder of its own, which may hold what Debian does not know.
python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
  --only-binary=:all: --target /opt --requirement "$here/cuda_requirements.txt"
# Linkers look for names without versions, and nvcc for lib64; wheels have neither.
for library in /opt/nvidia/*/lib/*.so.*; do
  ln -s "${library##*/}" "${library%%.so.*}.so"
done
ln -s lib /opt/nvidia/cu13/lib64
