#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/runtime_packages.sh BINARY...
#
# Prints the Debian packages that own the shared libraries which these binaries load, one per line:
# the packages that a machine needs to run the binaries without building them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1:-}" in
  "") usage_of "$0" >&2; exit 2 ;;
  --help | -h) usage_of "$0"; exit 0 ;;
esac

# Prints the package that owns a library, which dpkg may know by either path: /lib may be a link to
# /usr/lib.
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
