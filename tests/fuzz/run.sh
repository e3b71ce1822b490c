#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target from its corpus, then proves that each target would notice a bug: the same
# target with a planted bug, started from the accepted inputs only, must fail.
#   tests/fuzz/run.sh [--seconds N] [--build_dir DIR]
#     --seconds N      seconds for each target without planted bug (default 60)
#     --build_dir DIR  folder of the build with clang (default build/fuzz)
# Prints one line per target; exit status 0 if every line is as it must be. A failing input is kept
# and named.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=60
build_dir=build/fuzz
planted_seconds=60
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift 2 ;;
    --build_dir) build_dir="${2:?--build_dir needs a directory}"; shift 2 ;;
    *) echo "unknown argument $1; usage: tests/fuzz/run.sh [--seconds N] [--build_dir DIR]" >&2; exit 2 ;;
  esac
done
if ! [[ "$seconds" =~ ^[1-9][0-9]*$ ]]; then
  echo "--seconds: expected a positive number, got $seconds" >&2
  exit 2
fi

if [ ! -f "$build_dir/CMakeCache.txt" ]; then
  cmake -S . -B "$build_dir" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" -DCMAKE_CXX_COMPILER=clang++-14 \
    -DDEEPPCR_BUILD_TESTS=OFF -DDEEPPCR_BUILD_FUZZERS=ON -DDEEPPCR_ENABLE_CUDA=OFF
fi
build_dir="$(cd "$build_dir" && pwd)"
cmake --build "$build_dir" --target deeppcr_fuzzers --parallel "$(nproc)" >"$build_dir/fuzz_build.log" ||
  { cat "$build_dir/fuzz_build.log" >&2; exit 1; }

artifacts="$build_dir/fuzz_artifacts"
rm -rf "$artifacts"
mkdir -p "$artifacts"

# The directory for files that targets work on, in memory if possible. A planted bug leaves some
# behind, which even their owner may have no right to read.
place="${TMPDIR:-/dev/shm}"
[ -w "$place" ] || place=/tmp
TMPDIR="$(mktemp -d -p "$place" deeppcr_fuzzers.XXXXXX)"
export TMPDIR
trap 'chmod -R u+rwX "$TMPDIR"; rm -rf "$TMPDIR"' EXIT

export ASAN_OPTIONS="allocator_may_return_null=0:detect_leaks=1"
export UBSAN_OPTIONS="print_stacktrace=1"

# fuzz NAME BINARY CORPUS_PATTERN SECONDS: returns the exit status of the fuzzer; its output is in
# $log.
fuzz() {
  local name="$1" binary="$2" pattern="$3" limit="$4" seeds dictionary=()
  seeds="$artifacts/$2.corpus"
  log="$artifacts/$2.log"
  mkdir -p "$seeds"
  find "tests/fuzz/corpus/$name" -type f -name "$pattern" -exec cp -t "$seeds" {} +
  [ -f "tests/fuzz/$name.dict" ] && dictionary=("-dict=tests/fuzz/$name.dict")
  "$build_dir/tests/fuzz/$binary" -max_total_time="$limit" -timeout=10 -rss_limit_mb=2048 \
    -max_len=4096 -len_control=0 -seed=1 -print_final_stats=1 \
    -artifact_prefix="$artifacts/$binary." "${dictionary[@]}" "$seeds" >"$log" 2>&1
}

executions() { sed -n 's/^stat::number_of_executed_units: *//p' "$log"; }

status=0
while read -r name; do
  if fuzz "$name" "${name}_fuzz" '*' "$seconds" && [ "$(executions)" -gt 0 ]; then
    echo "PASS  $name: $(executions) inputs in ${seconds} s, nothing found"
  else
    echo "FAIL  $name: see $log; input in $artifacts" && tail -n 25 "$log"
    status=1
  fi
  started=$SECONDS
  # A bug counts as found only with a failing input, not by the exit code alone.
  if ! fuzz "$name" "${name}_fuzz_planted" 'accepted-*' "$planted_seconds" &&
    compgen -G "$artifacts/${name}_fuzz_planted.crash-*" >/dev/null; then
    echo "PASS  $name with a planted bug: found after $(executions) inputs, $((SECONDS - started)) s" \
      "($(sed -n 's/^property violated: /property violated: /p; s/^.*ERROR: \(AddressSanitizer: [a-z-]*\).*/\1/p' "$log" | head -1))"
  else
    echo "FAIL  $name with a planted bug: not found in $planted_seconds s" && tail -n 25 "$log"
    status=1
  fi
done <"$build_dir/tests/fuzz/targets.txt"
exit $status
