# Sourced by demo.sh and test.sh: installs the Debian or Ubuntu packages a build needs, when it may.
# Usage: need_packages PACKAGE...

need_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is not a Debian or Ubuntu machine, so nothing was installed. The build needs the equivalents of: $*" >&2
    return 0
  fi
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0

  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      echo "Missing packages: ${missing[*]}" >&2
      echo "Install them as root, then run this again:  apt-get install ${missing[*]}" >&2
      return 1
    fi
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
    echo "apt-get could not install: ${missing[*]}. Look at the lines above, then run this again." >&2
    return 1
  }
}

build_packages=(g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev libhwy-dev libpcre2-dev libutf8proc-dev)
test_packages=(libgtest-dev libbenchmark-dev xz-utils clang-format clang-tidy clang-tools)
