# shellcheck shell=sh
# Fetches $MODEL_URL to $MODEL_FILE unless it is there, and fails unless its SHA-256 is $MODEL_SHA256.
# $MODEL_HEADER, when not empty, names a file with a header to send.
matches() { [ -f "$1" ] && printf '%s  %s\n' "$MODEL_SHA256" "$1" | sha256sum -c - >/dev/null 2>&1; }

if matches "$MODEL_FILE"; then
  echo "the model is there and verified"
  exit 0
fi
part=$MODEL_FILE.part
# Goes on where an attempt before this one was cut off.
curl --fail --silent --show-error --location --proto '=http,https' --connect-timeout 30 \
  --speed-limit 1024 --speed-time 120 --retry 5 --retry-delay 5 --continue-at - \
  ${MODEL_HEADER:+--header "@$MODEL_HEADER"} --output "$part" "$MODEL_URL"
if ! matches "$part"; then
  rm -f "$part"
  echo "what $MODEL_URL sent has another SHA-256 than model.download.sha256" >&2
  exit 1
fi
mv -f "$part" "$MODEL_FILE"
echo "the model is fetched and verified"
