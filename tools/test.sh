#!/usr/bin/env bash
# Installs, builds and runs every test through ctest.
#
# Usage: tools/test.sh [--stage release|asan|tsan|fuzz|asan-gpu|tsan-gpu|slow|all] [ctest arguments]
#
#   release   everything, on the real model: units, server, command line, end to end, lint, Helm chart
#   asan      engine and below under the address and undefined-behaviour sanitizers
#   tsan      engine and below under the thread sanitizer
#   fuzz      the libFuzzer targets, briefly, on their corpus
#   all       these four (default)
#   asan-gpu, tsan-gpu   ranks on emulated GPUs, which `release` runs, under the sanitizers
#   slow      the container image of the last commit, built, run and asked; as root
#
# Arguments that it does not know go to each ctest, for example: tools/test.sh --stage release -R cli
# The last line sums up: N passed, N failed, N skipped. Not zero on any failure, or when nothing ran.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stages=(release asan tsan fuzz)
ctest_arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --stage)
      [[ $# -ge 2 ]] || usage_error "--stage needs a value"
      case $2 in
        all) ;;
        release | asan | tsan | fuzz | asan-gpu | tsan-gpu | slow) stages=("$2") ;;
        *) usage_error "--stage takes release, asan, tsan, fuzz, asan-gpu, tsan-gpu, slow or all, not $2" ;;
      esac
      shift
      ;;
    -h | --help) show_help ;;
    *) ctest_arguments+=("$1") ;;
  esac
  shift
done

dependencies=(--test)
if [[ ${stages[*]} == slow ]]; then dependencies+=(--image); fi
"$root/tools/install_dependencies.sh" "${dependencies[@]}"
RINGFILL_TEST_MODEL=$("$root/tools/fetch_model.sh")
export RINGFILL_TEST_MODEL

passed=0
failed=0
skipped=0
broken=()

# An attribute of the first <testsuite> in a JUnit file.
junit_count() { sed -n "s/.*[[:space:]]$2=\"\([0-9]*\)\".*/\1/p" "$1" | head -n 1; }

# run_ctest STAGE TREE [ARGUMENT]...: adds to the sums.
run_ctest() {
  local stage=$1 tree=$root/build/$2 report tests failures skips none=error
  shift 2
  report=$tree/junit.xml
  rm -f "$report"
  # A selection may match nothing in one stage; the sum at the end tells when it matched nowhere.
  if [[ ${#ctest_arguments[@]} -gt 0 ]]; then none=ignore; fi
  ctest --test-dir "$tree" --output-on-failure --no-tests="$none" -j "$(nproc)" \
    --output-junit "$report" "$@" "${ctest_arguments[@]}" || broken+=("$stage: tests")
  [[ -f $report ]] || return 0
  tests=$(junit_count "$report" tests)
  failures=$(junit_count "$report" failures)
  skips=$(($(junit_count "$report" skipped) + $(junit_count "$report" disabled)))
  passed=$((passed + tests - failures - skips))
  failed=$((failed + failures))
  skipped=$((skipped + skips))
}

for stage in "${stages[@]}"; do
  start=$SECONDS
  tree=$stage
  targets=()
  selection=()
  case $stage in
    # Of the release tree, without building it: the image's build is its own.
    slow) tree=release selection=(-C Slow -L slow) ;;
    asan) selection=(-LE 'lint|e2e') ;;
    # Nothing to see in programs of one thread.
    tsan) selection=(-LE 'lint|e2e|serial') ;;
    fuzz) selection=(-L fuzz) ;;
    asan-gpu) selection=(-R 'cuda|comm_(nccl|conformance)' -LE 'lint|e2e') ;;
    tsan-gpu) selection=(-R 'cuda|comm_(nccl|conformance)' -LE 'lint|e2e|serial') ;;
  esac
  # Only the programs of those selected, after which tests are named.
  case $stage in
    fuzz | *-gpu)
      if configure "$stage"; then
        mapfile -t targets < <(ctest --test-dir "$root/build/$stage" -N "${selection[@]}" 2>/dev/null |
          sed -n 's/^ *Test *#[0-9]*: //p')
      fi
      ;;
  esac
  make=build
  if [[ $stage == slow ]]; then make=configure; fi
  if "$make" "$tree" "${targets[@]}"; then
    say "testing $stage"
    run_ctest "$stage" "$tree" "${selection[@]}"
  else
    broken+=("$stage: build")
  fi
  say "$stage took $((SECONDS - start)) s"
done

if [[ ${#broken[@]} -gt 0 ]]; then
  say "failed: $(printf '%s; ' "${broken[@]}")"
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[[ ${#broken[@]} -eq 0 && $failed -eq 0 && $passed -gt 0 ]]
