#!/usr/bin/env bash
# Installs what is missing, builds everything, runs the whole test suite and ends with "N passed, N failed, N skipped".
#   tools/test.sh               the suite
#   tools/test.sh --sanitize    the same under address and undefined-behaviour sanitizers (without the lint tests)
#   tools/test.sh --tidy        clang-tidy over the host sources, which takes longer than all the rest
#   further arguments go to ctest, e.g.  tools/test.sh -R Tokenizer
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tools/setup.sh"

build=$root/build/test
configure=(-DCMAKE_BUILD_TYPE=Release -DDUET_CUDA=AUTO)
select=(-LE tidy)
if [ "${1:-}" = --sanitize ]; then
  shift
  build=$root/build/sanitize
  configure=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DDUET_CUDA=OFF -DDUET_SANITIZE=ON -DDUET_ASSERTS=ON)
  select=(-LE lint)
elif [ "${1:-}" = --tidy ]; then
  shift
  select=(-L tidy)
fi

need_packages "${build_packages[@]}" "${test_packages[@]}" || exit 1
mkdir -p "$build"
cmake -S "$root" -B "$build" -G Ninja -DDUET_WERROR=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "${configure[@]}" >"$build.configure.log" 2>&1 ||
  { cat "$build.configure.log"; echo "The configuration failed."; exit 1; }
cmake --build "$build" --parallel "$(nproc)" || { echo "The build failed."; exit 1; }

report=$build/report.xml
rm -f "$report"
ctest --test-dir "$build" --parallel "$(nproc)" --no-tests=error --output-on-failure --timeout 900 --output-junit "$report" \
  "${select[@]}" "$@" | grep --line-buffered -v '^ *Start '
status=${PIPESTATUS[0]}
[ -s "$report" ] || { echo "No test ran."; exit 1; }

count() { sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" "$report" | head -n 1; }
total=$(count tests) failed=$(count failures) skipped=$(( $(count skipped) + $(count disabled) ))
if [ "$skipped" -gt 0 ]; then
  echo "Skipped:"
  sed -n 's/.*<testcase name="\([^"]*\)".*status="\(notrun\|disabled\)".*/  \1/p' "$report"
fi
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && exit "$status"
exit 1
