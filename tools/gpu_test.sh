#!/usr/bin/env bash
# Everything that needs an NVIDIA card: the GPU tests, the same under compute-sanitizer, the 6 GiB proof and a soak.
# Ends with "N passed, N failed, N skipped", as tools/test.sh does; a run of a tool over a program counts as one test.
#   tools/gpu_test.sh                      builds for the card that is here, then runs all of it
#   tools/gpu_test.sh --build DIR          takes the programs of DIR (cuda_*_test, engine_bench) as they are
#   tools/gpu_test.sh --soak MINUTES       how long the soak takes (default 10; 0 leaves it out)
#   tools/gpu_test.sh --only WORD          only what holds WORD: tests, memcheck, racecheck, initcheck, synccheck, six-gib, soak
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build= minutes=10 only=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$(cd "$2" && pwd) || exit 1; shift 2 ;;
    --soak) minutes=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) echo "tools/gpu_test.sh: '$1' is no option; the top of the script lists them" >&2; exit 1 ;;
  esac
done

if [ -z "$build" ]; then
  . "$root/tools/setup.sh"
  need_packages "${build_packages[@]}" "${test_packages[@]}" || exit 1
  build=$root/build/gpu
  mkdir -p "$build"
  native=(-DCMAKE_CUDA_ARCHITECTURES=native)
  nvidia-smi -L >/dev/null 2>&1 || native=()
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDUET_CUDA=ON -DDUET_WERROR=ON "${native[@]}" >"$build.configure.log" 2>&1 ||
    { cat "$build.configure.log"; echo "The configuration failed."; exit 1; }
  cmake --build "$build" --parallel "$(nproc)" || { echo "The build failed."; exit 1; }
fi
programs=()
while IFS= read -r program; do programs+=("$program"); done < <(find "$build" -name 'cuda_*_test' -type f -executable | sort)
bench=$(find "$build" -name engine_bench -type f -executable | head -n 1)
[ ${#programs[@]} -gt 0 ] || { echo "No cuda_*_test is in $build."; exit 1; }

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
wanted() { [ -z "$only" ] || [[ $1 == *"$only"* ]]; }
pass() { passed=$((passed + 1)); echo "passed  $1 ($2 s)"; }
fail() { failed=$((failed + 1)); echo "FAILED  $1"; tail -n 40 "$log"; }

# once NAME COMMAND...: one test that passes when the command does.
once() {
  local name=$1 start=$SECONDS
  shift
  if timeout 1800 "$@" >"$log" 2>&1; then pass "$name" $((SECONDS - start)); else fail "$name"; fi
}

# Counts of a test program's own closing lines.
tests_of() {
  local name=$1 start=$SECONDS status=0
  timeout 900 "$2" >"$log" 2>&1 || status=$?
  local good bad skips
  good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  skips=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0})) skipped=$((skipped + ${skips:-0}))
  echo "$name: ${good:-0} passed, ${bad:-0} failed, ${skips:-0} skipped ($((SECONDS - start)) s)"
  if [ "$status" -ne 0 ]; then
    [ "${bad:-0}" -gt 0 ] || failed=$((failed + 1))
    grep -a -A 8 'Failure' "$log" | head -n 60
  fi
}

# Tests that a tool does not run over: timings mean nothing under it, and the widest comparisons take minutes; racecheck
# follows every access to shared memory, so that whole models take it longer still.
left_out() {
  case $1 in
    cuda_attend_test) echo '-*MergesMany*:*MatchesTheOracle*' ;;
    cuda_rope_test) echo '-*MatchesTheOracle*:*Times*' ;;
    cuda_project_test) echo '-*TilesOfEvery*:*RowsOfEvery*:*EveryRank*:*Times*' ;;
    cuda_sample_test) echo '-*ChoosesAndLists*:*Times*' ;;
    cuda_golden_test) [ "$2" = racecheck ] && echo '*models_qwen2' || echo '*qwen2*:*llama_gqa*' ;;
    cuda_decoder_test) [ "$2" = racecheck ] && echo '*TiedHead*:*ASickSequence*' || echo '*' ;;
    cuda_backend_test) [ "$2" = racecheck ] && echo '*TwiceGives*' || echo '-*Times*' ;;
    *) echo '-*Times*' ;;
  esac
}

sanitize() {
  local tool=$1 program name
  command -v compute-sanitizer >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
  if ! command -v compute-sanitizer >/dev/null; then
    echo "skipped $tool: compute-sanitizer is not here (it comes with the CUDA toolkit)"
    skipped=$((skipped + ${#programs[@]}))
    return
  fi
  for program in "${programs[@]}"; do
    name=$(basename "$program")
    [ "$name" = cuda_allocation_test ] && continue  # It stands between the program and the driver itself.
    once "$tool $name" compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --gtest_filter="$(left_out "$name" "$tool")"
  done
}

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "No NVIDIA card is visible here, so nothing was run."
  echo "0 passed, 0 failed, ${#programs[@]} skipped"
  exit 0
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if wanted tests; then
  for program in "${programs[@]}"; do tests_of "$(basename "$program")" "$program"; done
fi
for tool in memcheck racecheck initcheck synccheck; do
  if wanted "$tool"; then sanitize "$tool"; fi
done
if wanted six-gib; then
  once six-gib "$bench" six-gib && cat "$log"
fi
if wanted soak && [ "$minutes" != 0 ]; then
  once "soak of $minutes minutes" "$bench" soak --minutes "$minutes" && cat "$log"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
