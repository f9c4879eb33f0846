#!/usr/bin/env bash
# engine_pack from outside: what it writes, exit codes, one sentence an error. Arguments: engine_pack, tests/golden/data.
set -u
pack=$1
golden=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

expect() { # expect CODE TEXT ARGUMENTS...: exit code, a piece of the output
  local code=$1 text=$2 output got
  shift 2
  output=$("$pack" "$@" 2>&1)
  got=$?
  if [ "$got" -ne "$code" ] || [[ $output != *"$text"* ]]; then
    echo "engine_pack $*: exit code $got (want $code), no '$text' in: $output"
    failures=$((failures + 1))
  fi
}

cd "$folder" || exit 1
expect 0 "nf4, blocks of 64" "$golden/models/qwen2" a.duet --weights nf4 --embedding int8
expect 0 "bf16" a.duet b.duet --embedding bf16
expect 1 "exists already" "$golden/models/qwen2" a.duet
expect 0 "" "$golden/models/qwen2" a.duet --force --quiet
expect 1 "one path was given" "$golden/models/qwen2"
expect 1 "--weights" "$golden/models/qwen2" c.duet --weights nf5
expect 1 "Block size 100" "$golden/models/qwen2" c.duet --weights nf4 --block 100
expect 1 "qwen2.5-0.5b" c.duet --synthetic qwen2.5-0.4b
expect 1 "go with --synthetic" "$golden/models/qwen2" c.duet --format safetensors
expect 2 "no model at" nowhere c.duet
expect 2 "c.duet" "$golden/models/qwen2" missing/c.duet
expect 3 "does not begin" "$golden/../README.md" c.duet
expect 4 "quantising it again" "$golden/bnb/qwen2_fp4" c.duet --weights nf4
expect 0 "rank 2" --synthetic smollm2-135m --synthetic-lora 2 adapter
expect 0 "" --help
printf 'damaged' | dd of=a.duet bs=1 seek=90 conv=notrunc 2>/dev/null
expect 3 "checksum" a.duet c.duet

left=$(find . -maxdepth 1 -type f | sort | tr '\n' ' ')
if [ "$left" != "./a.duet ./b.duet " ]; then
  echo "files left: $left"
  failures=$((failures + 1))
fi
exit $((failures > 0))
