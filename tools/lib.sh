# shellcheck shell=bash
# Helpers that the scripts here share. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME

say() { printf '==> %s\n' "$*" >&2; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Wrong flags.
usage_error() {
  printf '%s: %s\nTry %s --help.\n' "${0##*/}" "$*" "${0##*/}" >&2
  exit 2
}

# Prints the comment block that opens the calling script.
show_help() {
  sed -n '2,/^[^#]/{ /^#/!q; s/^# \{0,1\}//; p; }' "$0"
  exit 0
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "run as root, or install sudo, for: $*"
  fi
}

# Where fetch_model.sh keeps the model; outside the build tree.
model_path() {
  printf '%s/ringfill/SmolLM2-135M-Instruct.Q4_1.gguf' "${XDG_CACHE_HOME:-$HOME/.cache}"
}

# configure PRESET: the first time only; ninja configures again when a CMake file changed.
configure() {
  local preset=$1 log
  [[ -f $root/build/$preset/build.ninja ]] && return 0
  say "configuring $preset"
  mkdir -p "$root/build"
  log=$root/build/configure-$preset.log
  (cd "$root" && cmake --preset "$preset" >"$log" 2>&1) && return 0
  cat "$log" >&2
  # Half a configuration must not pass for a whole one next time.
  rm -f "$root/build/$preset/build.ninja"
  return 1
}

# build PRESET [TARGET]...: configures, builds what is not up to date, says nothing when all is.
build() {
  local preset=$1 dir
  shift
  dir=$root/build/$preset
  configure "$preset" || return 1
  if ninja -C "$dir" -n "$@" | grep -q 'no work to do'; then return 0; fi
  say "building $preset${*:+: $*}"
  ninja -C "$dir" "$@" >&2
}
