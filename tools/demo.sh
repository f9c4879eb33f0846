#!/usr/bin/env bash
# Sets up, builds and runs the demo pair: Laya answers sample tickets, Kev takes over what she is unsure of, and both are
# scored on held-out tickets. Nothing is downloaded beyond Debian or Ubuntu packages.
#   tools/demo.sh                                    the whole demo
#   tools/demo.sh "My card was charged twice"        arguments go to engine_run, on the demo pair
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tools/setup.sh"
need_packages "${build_packages[@]}"

build=$root/build/demo
mkdir -p "$build"
if [ ! -f "$build/build.ninja" ]; then
  # Kernels for the card that is here, and none where there is no card: all targets take minutes to compile.
  cuda=(-DDUET_CUDA=OFF)
  if nvidia-smi -L >/dev/null 2>&1; then cuda=(-DDUET_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=native); fi
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${cuda[@]}" -DDUET_TESTS=OFF -DDUET_BENCH=OFF >"$build/configure.log" 2>&1 ||
    { cat "$build/configure.log"; echo "The configuration failed; the lines above say why." >&2; exit 1; }
fi
if [ -t 1 ]; then
  cmake --build "$build" --parallel "$(nproc)" --target engine_run
else
  cmake --build "$build" --parallel "$(nproc)" --target engine_run >"$build/build.log" 2>&1 ||
    { cat "$build/build.log"; echo "The build failed; the lines above say why." >&2; exit 1; }
fi

demo=$root/tools/demo
pair=(--laya "$demo/base" --laya-lora "$demo/laya" --kev "$demo/base" --kev-lora "$demo/kev" --weights int8
  --rules "$demo/rules.json"
  --model-system "laya=You are Laya. Name the team and the urgency."
  --model-system "kev=You are Kev. Weigh the ticket, then decide.")
if [ $# -gt 0 ]; then
  exec "$build/tools/engine_run" "${pair[@]}" "$@"
fi
exec "$build/tools/engine_run" "${pair[@]}" \
  --samples "$demo/tickets_sample.jsonl" --evaluate "$demo/tickets_test.jsonl" --expect team,urgency
