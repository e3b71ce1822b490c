#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/runtime_packages.sh BINARY...
#
# Prints the Debian packages that own the shared libraries which these binaries load, one per line:
# what a machine needs to run them without having built them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1:-}" in
  "") usage_of "$0" >&2; exit 2 ;;
  --help | -h) usage_of "$0"; exit 0 ;;
esac

# The package that owns a library. With /lib a link to /usr/lib, dpkg may know it by either path.
owner_of() {
  local file
  for file in "$1" "$(readlink -f "$1")" "/usr$1" "${1#/usr}"; do
    if dpkg-query -S "$file" 2>/dev/null; then
      return 0
    fi
  done
  fail "no package owns $1"
}

libraries="$(for binary in "$@"; do
  ldd "$binary" | awk '
    /not found/ {print "missing library: " $1 > "/dev/stderr"; exit 1}
    $2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u)"
[ -n "$libraries" ] || fail "these binaries load no shared libraries: $*"
for library in $libraries; do
  owner_of "$library"
done | sed 's/:.*//' | sort -u
