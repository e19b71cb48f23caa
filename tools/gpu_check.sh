#!/usr/bin/env bash
# Tests the CUDA backend on the GPUs of this machine and times it. Needs no network.
#
# Usage: tools/gpu_check.sh [--build-only | --no-build] [--out DIR] [--model FILE] [--minutes N]
#
#   --build-only   build what runs, for a machine that cannot build itself
#   --no-build     run what build/gpu holds
#   --out DIR      where results go (default build/gpu-check)
#   --model FILE   a GGUF model for the end-to-end rates (default: a random one is written)
#   --minutes N    stop about N minutes (default 8) after the build; what had no time is said to be skipped
#
# Builds with RINGFILL_CUDA=ON, runs the tests of kernels, passes and engine that the emulation runs too,
# then times attention (4K to 128K keys), products, prefill and decode on one GPU and on all. Writes
# check.json and check.txt, a table of what ran, failed and was skipped, which is also printed. Ends with 0
# when something passed and nothing failed, 1 when something failed, 77 when there is no GPU or nothing ran.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build=true
run=true
out=$root/build/gpu-check
model=
minutes=8

while [[ $# -gt 0 ]]; do
  case $1 in
    --build-only) run=false ;;
    --no-build) build=false ;;
    --out | --model | --minutes)
      [[ $# -ge 2 ]] || usage_error "$1 needs a value"
      case $1 in
        --out) out=$2 ;;
        --model) model=$2 ;;
        --minutes) minutes=$2 ;;
      esac
      shift
      ;;
    -h | --help) show_help ;;
    *) usage_error "unknown argument: $1" ;;
  esac
  shift
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || usage_error "--minutes takes a number from 1 up"
$build || $run || usage_error "--build-only and --no-build leave nothing to do"
[[ -z $model || -r $model ]] || usage_error "cannot read $model"

tree=$root/build/gpu

# It also prints on standard output that there is none.
count_gpus() {
  local names
  if names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null); then
    printf '%s' "$names" | grep -c .
  else
    echo 0
  fi
}
gpus=$(count_gpus || true)
if $run && [[ $gpus -eq 0 ]]; then
  say "there is no GPU"
  exit 77
fi

if $build; then
  if [[ ! -f $tree/build.ninja ]]; then
    say "configuring gpu"
    (cd "$root" && cmake --preset release -B "$tree" -DRINGFILL_CUDA=ON -DRINGFILL_GPU_TESTS=ON \
      -DRINGFILL_BUILD_SERVER=OFF) >&2 || die "cannot configure; --build-only on another machine?"
  fi
  mapfile -t programs < <(ninja -C "$tree" -t targets all | sed -n 's/^\(cuda_[a-z0-9_]*_on_gpu\): phony$/\1/p')
  say "building"
  ninja -C "$tree" "${programs[@]}" gpu_bench engine_bench ringfill-make-model >&2
fi
$run || exit 0
start=$SECONDS  # what was built has its time besides

mkdir -p "$out"
rm -f "$out"/*.jsonl "$out"/check.json "$out"/check.txt
nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv >"$out/gpus.csv"

left() { echo $((minutes * 60 - (SECONDS - start))); }

# stage NAME SECONDS COMMAND...: runs it, at most that long and not past the end; notes how it went.
# Its output goes to NAME.log.
stage() {
  local name=$1 most=$2 began=$SECONDS code=0 outcome
  shift 2
  if [[ $(left) -lt 5 ]]; then
    outcome=skipped
  else
    if [[ $most -gt $(left) ]]; then most=$(left); fi
    say "$name"
    timeout --kill-after=10 "$most" "$@" >"$out/$name.log" 2>&1 || code=$?
    case $code in
      0) outcome=passed ;;
      77) outcome=skipped ;;
      124 | 137) outcome='out of time' ;;
      *) outcome=failed ;;
    esac
  fi
  printf '{"stage": "%s", "outcome": "%s", "seconds": %d}\n' "$name" "$outcome" \
    $((SECONDS - began)) >>"$out/stages.jsonl"
}

# Each test alone, so that one that hangs or dies takes no other along.
while IFS= read -r test; do
  stage "$(basename "$test")" 90 "$test" --gtest_brief=1
done < <(find "$tree" -type f -name '*_on_gpu' -perm -u+x | sort)

stage operations 60 "$tree/bench/gpu_bench"
grep '^{' "$out/operations.log" >"$out/operations.jsonl" 2>/dev/null || true

if [[ -z $model ]]; then
  # Layers of an 8B Llama; few, since a layer's rates are what matters.
  model=$out/model.gguf
  [[ -f $model ]] || stage model 60 "$tree/bin/ringfill-make-model" --out "$model" --layers 4 --width 4096 \
    --heads 32 --kv-heads 8 --head-dim 128 --ffn 14336 --vocab 32000 --context 131072 --type bf16
fi

# engine NAME RANKS STRATEGY TOKENS
engine() {
  local name=$1 ranks=$2 strategy=$3 tokens=$4
  stage "$name" 60 "$tree/bench/engine_bench" "$model" --backend cuda --ranks "$ranks" \
    --strategy "$strategy" --tokens "$tokens" --decode 64 --chunk 8192 --repeats 2 --warmup-tokens 256 --json
  grep '^{' "$out/$name.log" 2>/dev/null |
    sed "s/^{/{\"run\": \"$name\", \"ranks\": $ranks, \"tokens\": $tokens, /" >>"$out/engine.jsonl" || true
}
for tokens in 4096 32768 131000; do engine "prefill-$tokens-1gpu" 1 auto "$tokens"; done
if [[ $gpus -gt 1 ]]; then
  for strategy in pass-kv gather-kv pass-q; do engine "ring-$strategy" "$gpus" "$strategy" 131000; done
fi

python3 - "$out" <<'PYTHON'
import csv, json, pathlib, sys

out = pathlib.Path(sys.argv[1])


def lines(name):
    path = out / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


stages, operations, engine = (lines(f"{name}.jsonl") for name in ("stages", "operations", "engine"))
with open(out / "gpus.csv", encoding="utf-8") as file:
    gpus = [{key.strip(): value.strip() for key, value in row.items()} for row in csv.DictReader(file)]
(out / "check.json").write_text(json.dumps(
    {"gpus": gpus, "stages": stages, "operations": operations, "engine": engine}, indent=1) + "\n")

text = [f"GPU {gpu['index']}: {gpu['name']}, {gpu['memory.total [MiB]']}, driver {gpu['driver_version']}"
        for gpu in gpus]
text += ["", f"{'stage':36} {'outcome':12} {'seconds':>8}"]
text += [f"{s['stage']:36} {s['outcome']:12} {s['seconds']:8}" for s in stages]
text += ["", f"{'operation':20} {'size':>10} {'rows':>6} {'ms':>10} {'rate':>10}"]
text += [f"{o['what']:20} {o['size']:10} {o['rows']:6} {o['ms']:10.3f} {o['rate']:10.1f} {o['unit']}"
         for o in operations]
text += ["", f"{'end to end':24} {'GPUs':>5} {'tokens':>8} {'prefill ms':>11} {'tok/s':>10} {'decode tok/s':>13}"]
text += [f"{e['run']:24} {e['ranks']:5} {e['tokens']:8} {e['prefill_ms']:11.1f} {e['tokens_per_s']:10.1f} "
         f"{e['decode_per_s']:13.1f}" for e in engine]
(out / "check.txt").write_text("\n".join(text) + "\n")
print("\n".join(text))
count = {outcome: sum(s["outcome"] == outcome for s in stages)
         for outcome in ("passed", "failed", "out of time", "skipped")}
print("\n" + ", ".join(f"{n} {outcome}" for outcome, n in count.items()))
sys.exit(1 if count["failed"] else 0 if count["passed"] else 77)
PYTHON
