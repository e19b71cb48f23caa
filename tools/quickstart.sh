#!/usr/bin/env bash
# Asks a real model about a real long document, from a bare Debian 12 machine on.
#
# Usage: tools/quickstart.sh [--keep] [--prompt-file F] [--question Q] [--max-tokens N]
#
#   --keep            leave the daemon running at the end, and say where
#   --prompt-file F   the document (default: the GPL-3 text that every Debian system carries)
#   --question Q      what to ask about it
#   --max-tokens N    length of the answer (default 120)
#
# Installs what is missing, builds, fetches the model, starts ringfilld with config/quickstart.yaml and
# runs `ringfill generate`. Safe to run again: nothing is done twice.
#
# The model holds 8,192 tokens, document, question and answer: about 30 kB of English text.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

document=/usr/share/common-licenses/GPL-3
question='Summarize the document above in three sentences.'
max_tokens=120
keep=false

while [[ $# -gt 0 ]]; do
  case $1 in
    --keep) keep=true ;;
    --prompt-file | --question | --max-tokens)
      [[ $# -ge 2 ]] || usage_error "$1 needs a value"
      case $1 in
        --prompt-file) document=$2 ;;
        --question) question=$2 ;;
        --max-tokens) max_tokens=$2 ;;
      esac
      shift
      ;;
    -h | --help) show_help ;;
    *) usage_error "unknown argument: $1" ;;
  esac
  shift
done
[[ -r $document && ! -d $document ]] || usage_error "cannot read $document"
[[ $max_tokens =~ ^[1-9][0-9]*$ ]] || usage_error "--max-tokens takes a number from 1 up"

"$root/tools/install_dependencies.sh"
build release ringfilld ringfill
RINGFILL_MODEL=$("$root/tools/fetch_model.sh")
export RINGFILL_MODEL

run_dir=$(mktemp -d "${TMPDIR:-/tmp}/ringfill-quickstart.XXXXXX")
daemon_pid=

stop_daemon() {
  if [[ -n $daemon_pid ]] && kill -TERM "$daemon_pid" 2>/dev/null; then
    wait "$daemon_pid" || true
  fi
  rm -rf "$run_dir"
}
trap stop_daemon EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The ports of the configuration, or free ones where something listens there already.
ports=()
if (: <>/dev/tcp/127.0.0.1/50051) 2>/dev/null || (: <>/dev/tcp/127.0.0.1/9464) 2>/dev/null; then
  ports=(--set server.listen=127.0.0.1:0 --set metrics.listen=127.0.0.1:0)
fi

say "starting the daemon"
# A session of its own when it stays: Ctrl-C at the prompt must not end it.
launcher=()
if $keep; then launcher=(setsid); fi
"${launcher[@]}" "$root/build/release/bin/ringfilld" --config "$root/config/quickstart.yaml" \
  "${ports[@]}" >"$run_dir/ready" 2>"$run_dir/log" </dev/null &
daemon_pid=$!

deadline=$((SECONDS + 60))
until grep -q '^ready grpc=' "$run_dir/ready"; do
  if ! kill -0 "$daemon_pid" 2>/dev/null; then
    status=0
    wait "$daemon_pid" || status=$?
    daemon_pid=
    tail -n 20 "$run_dir/log" >&2
    die "the daemon ended with exit code $status; its last log lines are above"
  fi
  if [[ $SECONDS -ge $deadline ]]; then
    tail -n 20 "$run_dir/log" >&2
    die "the daemon was not ready within 60 s; its last log lines are above"
  fi
  sleep 0.1
done
read -r _ grpc metrics <"$run_dir/ready"
address=${grpc#grpc=}
metrics=${metrics#metrics=}

prompt() {
  cat "$document"
  printf '\n\n%s\n' "$question"
}

client=("$root/build/release/bin/ringfill" --address "$address")
tokens=$(prompt | "${client[@]}" tokenize --chat --count --file -)
context=$("${client[@]}" status --json | grep -o '"max_context_tokens":[0-9]*' | head -n 1)
context=${context#*:}
if [[ $tokens -ge $context ]]; then
  die "document and question are $tokens tokens, the quickstart's model holds $context with the answer;" \
    "take a shorter document, or start ringfilld with a model of longer context (--set model.path=FILE)"
fi

say "asking about $document: $question"
prompt | "${client[@]}" generate --chat --prompt-file - --max-tokens "$max_tokens" --progress --stats

printf '\n' >&2
if $keep; then
  trap - EXIT
  say "the daemon stays: pid $daemon_pid, gRPC on $address, metrics on http://$metrics/metrics"
  say "its log is $run_dir/log; stop it with: kill $daemon_pid; rm -r $run_dir"
  say "next: build/release/bin/ringfill --address $address generate --chat --prompt 'Why is the sky blue?'"
else
  say "next: tools/quickstart.sh --keep leaves the daemon running; --prompt-file F reads your document"
fi
