#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/lint/run.sh [--fix]
#
# Checks that need no build: shell and Python syntax, the layering of includes, licence lines,
# lengths of files and of lines of Markdown, and, where clang-format 14 is installed, that it would
# change nothing.
#   --fix   let clang-format change what it would change
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. deploy/lib.sh
fix=false
case "${1:-}" in
  "") ;;
  --fix) fix=true ;;
  --help | -h) usage_of "$0"; exit 0 ;;
  *) unknown_flag "$1" ;;
esac

# sources_of ENDING...: lists the files of this project, without build trees and the like.
sources_of() {
  local patterns=()
  for ending in "$@"; do patterns+=(-o -name "*.$ending"); done
  find . \( -path './.*' -o -path './build*' -o -path './out' -o -path './demo-output' \) -prune \
    -o -type f \( "${patterns[@]:1}" \) -print | sort
}

status=0
mapfile -t shells < <(sources_of sh; echo .ci/run)
for file in "${shells[@]}"; do
  bash -n "$file" || status=1
done
say "shell syntax: ${#shells[@]} files"

mapfile -t pythons < <(sources_of py)
python="$(find_python)" || fail "python3 is missing"
PYTHONPYCACHEPREFIX="$(mktemp -d)"
export PYTHONPYCACHEPREFIX
"$python" -m py_compile "${pythons[@]}" || status=1
rm -rf "$PYTHONPYCACHEPREFIX"
say "Python syntax: ${#pythons[@]} files"

mapfile -t sources < <(sources_of h cc cu cuh)
for file in "${sources[@]}" "${shells[@]}" "${pythons[@]}"; do
  first="" second=""
  { read -r first; read -r second; } <"$file"
  [[ "$first$second" == *'SPDX-License-Identifier: Apache-2.0'* ]] ||
    { say "$file: no SPDX line at the top"; status=1; }
done
"$python" tests/lint/include_rules.py || status=1
"$python" tests/lint/one_definition.py || status=1
long="$(wc -l "${sources[@]}" "${shells[@]}" "${pythons[@]}" | awk '$1 > 600 && $2 != "total" { print $2 }')"
for file in $long; do say "$file: longer than 600 lines"; status=1; done
mapfile -t documents < <(sources_of md)
"$python" tests/lint/markdown_lines.py "${documents[@]}" || status=1

# Prints those of these files that clang-format would change, or what it says where it fails.
unformatted() {
  local said
  said="$(printf '%s\0' "$@" | xargs -0 -n 64 -P "$(nproc)" "$formatter" --dry-run -Werror 2>&1)" && return
  sed -n 's/^\([^ :]*\):[0-9].*clang-format-violations.*/\1/p' <<<"$said" | sort -u | grep . ||
    printf '%s\n' "$said"
}

formatter="$(command -v clang-format-14 || command -v clang-format || true)"
if [ -z "$formatter" ]; then
  say "clang-format: not installed, not checked"
elif ! "$formatter" --version | grep -q 'version 14\.'; then
  say "clang-format: the style is that of version 14, and this is another; not checked"
else
  mapfile -t changed < <(unformatted "${sources[@]}")
  if [ ${#changed[@]} -gt 0 ] && $fix; then
    "$formatter" -i "${changed[@]}" || status=1
    say "clang-format: changed ${changed[*]}"
  elif [ ${#changed[@]} -gt 0 ]; then
    say "clang-format: would change (tests/lint/run.sh --fix does it):"
    printf '  %s\n' "${changed[@]}"
    status=1
  fi
  say "clang-format: ${#sources[@]} files"
fi
exit $status
