#!/usr/bin/env bash
# tools/setup.sh on machines that are not this one: stand-ins for dpkg-query, apt-get, id and sudo decide what it sees.
set -euo pipefail
root=$(cd "${0%/*}/../.." && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

stand_in() { printf '#!/bin/bash\n%s\n' "$2" >"$stage/$1"; chmod +x "$stage/$1"; }
fail() { echo "FAILED: $1"; echo "--- it printed:"; cat "$stage/out"; exit 1; }
run() {  # status of need_packages with only the stand-ins and bash on PATH
  local status=0
  PATH=$stage /bin/bash -c '. "$0/tools/setup.sh"; need_packages wanted-package other-package' "$root" >"$stage/out" 2>&1 || status=$?
  echo "$status"
}

stand_in env 'while [[ "$1" == *=* ]]; do shift; done; exec "$@"'
stand_in dpkg-query 'exit 1'
stand_in apt-get 'echo "apt-get $*" >>"${0%/*}/apt.log"'

# Neither root nor sudo: it lists the packages and stops.
stand_in id 'echo 1000'
[ "$(run)" = 1 ] || fail "without root it must stop"
grep -q 'apt-get install wanted-package other-package' "$stage/out" || fail "without root it must name the command to run"
[ ! -e "$stage/apt.log" ] || fail "without root it must not call apt-get"

# Root: it installs what is missing, and only that.
stand_in id 'echo 0'
stand_in dpkg-query '[ "${!#}" = other-package ] && echo installed'
[ "$(run)" = 0 ] || fail "as root it must succeed"
grep -q 'install .*wanted-package' "$stage/apt.log" || fail "as root it must install the missing package"
! grep -q 'other-package' "$stage/apt.log" || fail "an installed package must not be installed again"

# An installation that fails is said, and stops.
stand_in apt-get 'exit 100'
[ "$(run)" = 1 ] || fail "a failed installation must stop"
grep -q 'could not install: wanted-package' "$stage/out" || fail "a failed installation must be named"

# Everything there: nothing is called, nothing is printed.
stand_in dpkg-query 'echo installed'
stand_in apt-get 'echo called >>"${0%/*}/late.log"'
[ "$(run)" = 0 ] || fail "with all packages it must succeed"
[ ! -s "$stage/out" ] && [ ! -e "$stage/late.log" ] || fail "with all packages it must stay silent"

# Not Debian: it says so and lets the build try.
rm "$stage/apt-get" "$stage/dpkg-query"
[ "$(run)" = 0 ] || fail "elsewhere it must go on"
grep -q 'not a Debian or Ubuntu machine' "$stage/out" || fail "elsewhere it must say so"
echo "setup.sh: all good"
