# shellcheck shell=sh
# Fetches $MODEL_URL to $MODEL_FILE unless it is there, and fails unless its SHA-256 is $MODEL_SHA256.
# $MODEL_HEADER, when not empty, names a file with headers to send.
matches() { [ -f "$1" ] && printf '%s  %s\n' "$MODEL_SHA256" "$1" | sha256sum -c - >/dev/null 2>&1; }

if matches "$MODEL_FILE"; then
  echo "the model is there and verified"
  exit 0
fi
part=$MODEL_FILE.part
if matches "$part"; then
  mv -f "$part" "$MODEL_FILE"
  echo "the model was fetched before, and is verified"
  exit 0
fi

# A server may redirect https to https alone.
case $MODEL_URL in
  https:*) redirects='=https' ;;
  *) redirects='=http,https' ;;
esac
# Of what a redirect leads to on another host, curl keeps these two secret, and no other header.
hops=10
if [ -n "$MODEL_HEADER" ] && grep -q -v -i -E '^(authorization|cookie):|^[[:space:]]*$' "$MODEL_HEADER"; then
  echo "model.download.headerSecret has a header that is neither Authorization nor Cookie: redirects are refused"
  hops=0
fi

# Goes on where an attempt before this one was cut off; prints the code of the answer.
fetch() {
  curl --fail --silent --show-error --location --max-redirs "$hops" --proto '=http,https' \
    --proto-redir "$redirects" --connect-timeout 30 --speed-limit 1024 --speed-time 120 --retry 5 --retry-delay 5 \
    --retry-max-time 300 --globoff --continue-at - ${MODEL_HEADER:+--header "@$MODEL_HEADER"} \
    --write-out '%{response_code}' --output "$part" "$MODEL_URL"
}
status=0
code=$(fetch) || status=$?
# A server without parts, or a part that is longer than the file.
if [ "$status" -eq 33 ] || [ "$code" = 416 ]; then
  echo "what is here cannot be gone on with: from the start"
  rm -f "$part"
  status=0
  fetch >/dev/null || status=$?
fi
[ "$status" -eq 0 ] || exit "$status"
if ! matches "$part"; then
  rm -f "$part"
  echo "what $MODEL_URL sent has another SHA-256 than model.download.sha256" >&2
  exit 1
fi
mv -f "$part" "$MODEL_FILE"
echo "the model is fetched and verified"
