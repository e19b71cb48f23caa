#!/usr/bin/env bash
# Fetches Debian's prometheus and promtool without installing them, and prints the folder that has both.
#
# Usage: tools/fetch_prometheus.sh
#
# Installed, the package would run a server that listens on every address. Here apt only downloads it, checked as
# always, and it is unpacked to ${XDG_CACHE_HOME:-~/.cache}/ringfill/prometheus (about 100 MB). When it is there,
# nothing is fetched.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
  '') ;;
  -h | --help) show_help ;;
  *) usage_error "unknown argument: $1" ;;
esac

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ringfill
folder=$cache/prometheus
if [[ -f $folder/complete ]]; then
  printf '%s\n' "$folder/usr/bin"
  exit 0
fi
for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || die "this system has no $tool; put prometheus and promtool in the PATH"
done

mkdir -p "$cache"
# Tests that start at the same time fetch once.
exec 9>"$cache/prometheus.lock"
flock 9
if [[ ! -f $folder/complete ]]; then
  say "fetching prometheus and promtool to $folder"
  work=$(mktemp -d "$cache/prometheus.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  # Its own user, to which it would change as root, cannot write here.
  download() { (cd "$work" && apt-get -q -o APT::Sandbox::User=root download prometheus >&2); }
  # A bare system has no lists yet, an old one those of packages that are gone.
  download || { as_root apt-get -q update >&2 && download; } ||
    die "cannot download Debian's prometheus; is there a network?"
  rm -rf "$folder"
  dpkg-deb --extract "$work"/prometheus_*.deb "$work/root"
  mv "$work/root" "$folder"
  touch "$folder/complete"
fi
printf '%s\n' "$folder/usr/bin"
