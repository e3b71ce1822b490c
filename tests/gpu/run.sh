#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gpu/run.sh OUT [--bundle DIR] [--only PART]... [--whole SECONDS]
#                         [--limit STEP=SECONDS]...
#
# Tests and benchmarks that need a GPU, on a machine that may have no more than a CUDA toolkit,
# Python and PyTorch: no network, no gRPC, no Abseil. Takes the programs of DIR (deploy/bundle.sh
# --with_tests; default: build/bundle-output) if they run here, unpacking DIR.tar.gz where there is
# that alone; without them it builds the two programs that need the toolkit alone, and says what it
# leaves out.
#   --only PART            one of environment, micro, check, kernels, ncu, tests, sanitizer, ladder,
#                          sweep, service, shapes; may be repeated
#   --whole SECONDS        limit of the whole; default: 530, under 9 minutes
#   --limit STEP=SECONDS   another limit for one step, named as in summary.txt; may be repeated
# Writes to OUT: summary.txt, results.json (which deploy/readme_tables.py reads), results.md,
# tests.log, sanitizer.log, ncu.txt, server.log, metrics.txt. Every step is a process of its own with
# a limit of its own: one that hangs, crashes or comes to its limit takes nothing from the others,
# and the first three files are as good as the run is far, also where this script is ended.
# Exit status: 0 only if every part that was asked for ran and passed. Without a GPU everything is
# done up to the first launch, and the exit status is 77.
set -uo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
. "$root/deploy/lib.sh"

out=
bundle="$root/build/bundle-output"
flags=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --bundle) bundle="$(realpath -m "$(flag_value "$@")")"; shift ;;
    --only | --whole | --limit) flags+=("$1" "$(flag_value "$@")") || exit 2; shift ;;
    -*) unknown_flag "$1" ;;
    *) out="$1" ;;
  esac
  shift
done
[ -n "$out" ] || { usage_of "$0" >&2; exit 2; }
mkdir -p "$out" || exit 1
out="$(cd "$out" && pwd)"
cd "$root" || exit 1
if [ ! -e "$bundle" ] && [ -f "$bundle.tar.gz" ]; then
  tar -C "$(dirname "$bundle")" -xzf "$bundle.tar.gz" || exit 1
fi
ulimit -c 0  # a crash leaves no core file
compiler="$(find_nvcc || true)"
exec python3 -B -u tests/gpu/run_gpu.py --out "$out" --bundle "$bundle" --nvcc "$compiler" "${flags[@]}"
