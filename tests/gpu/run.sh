#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/gpu/run.sh OUT [--bundle DIR] [--only PART]...
#
# Tests and benchmarks that need a GPU, on a machine that may have no more than a CUDA toolkit,
# Python and PyTorch: no network, no gRPC, no Abseil. Takes the programs of DIR (deploy/bundle.sh
# --with_tests; default: build/bundle-output) if they run here; without them it builds the program
# that needs the toolkit alone, and says what it leaves out.
#   --only PART   one of tests, sanitizer, kernels, ladder, sweep, service; may be repeated
# Writes to OUT: summary.txt, tests.log, results.json (which deploy/readme_tables.py reads),
# results.md, server.log, metrics.txt. Each part has its own limit; the whole stays under 9 minutes.
# Exit status: 0 only if every part that was asked for ran and passed. Without a GPU everything is
# done up to the first launch, and the exit status is 77.
set -uo pipefail
start="$SECONDS"
root="$(cd "$(dirname "$0")/../.." && pwd)"
. "$root/deploy/lib.sh"

out=
bundle="$root/build/bundle-output"
parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --bundle) bundle="$(realpath -m "$(flag_value "$@")")"; shift ;;
    --only) parts+=("$(flag_value "$@")"); shift ;;
    -*) unknown_flag "$1" ;;
    *) out="$1" ;;
  esac
  shift
done
[ -n "$out" ] || { usage_of "$0" >&2; exit 2; }
[ "${#parts[@]}" -gt 0 ] || parts=(tests sanitizer kernels ladder sweep service)
mkdir -p "$out"
out="$(cd "$out" && pwd)"
log="$out/tests.log"
: >"$log"
cd "$root" || exit 1

gpus="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true)"
whole=530  # limit of the whole, in seconds
summary=()
failures=0
executed=0
record() {
  summary+=("$(printf '%-8s %-28s %s' "$1" "$2" "${3:-}")")
  [ "$1" != FAILED ] || failures=$((failures + 1))
}
# Records a part that did not run: a failure if there is a GPU, a visible skip if there is none.
missing() { if [ -n "$gpus" ]; then record FAILED "$@"; else record skipped "$@"; fi; }
wanted() { [[ " ${parts[*]} " = *" $1 "* ]]; }

# checked NAME LIMIT COMMAND...: runs the command into the log; 77 is a visible skip. Counts the
# parts that ran.
checked() {
  local name="$1" limit="$2" status=0 began="$SECONDS"
  local left=$((whole - SECONDS + start))
  shift 2
  [ "$left" -ge "$limit" ] || limit="$left"
  if [ "$limit" -lt 5 ]; then
    record FAILED "$name" "the $whole s of the whole are over; --only runs it alone"
    return 1
  fi
  step "$name"
  printf '\n== %s: %s\n' "$name" "$*" >>"$log"
  timeout -k 10 "$limit" "$@" >"$out/.part" 2>&1 || status=$?
  cat "$out/.part" >>"$log"
  tail -n 5 "$out/.part"
  case "$status" in
    0) record ok "$name" "$((SECONDS - began)) s: $(tail -n 1 "$out/.part")"; executed=$((executed + 1)) ;;
    77) missing "$name" "$(tail -n 1 "$out/.part")" ;;
    124) record FAILED "$name" "not done after $limit s" ;;
    *) record FAILED "$name" "status $status after $((SECONDS - began)) s; see tests.log" ;;
  esac
  return $status
}

# ---- Programs to run: those of the bundle, or what the toolkit alone can build.
has() { [ -x "$bundle/bin/$1" ]; }
runs_here() { has "$1" && ! ldd "$bundle/bin/$1" 2>&1 | grep -q 'not found'; }

build_trial() {
  local nvcc
  nvcc="$(find_nvcc)" || { say "no nvcc: nothing to build with"; return 1; }
  mkdir -p "$bundle/bin"
  "$nvcc" -std=c++17 -O3 -fmad=false --expt-relaxed-constexpr \
    -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80 -I"$root" \
    tests/gpu/kernel_trial.cc kernels/cuda/*/*.cu -o "$bundle/bin/kernel_trial"
}

# The linker does not look for cuBLAS beside the compiler, where it lies.
if compiler="$(find_nvcc)"; then
  libraries="$(dirname "$(dirname "$(realpath "$compiler")")")/lib64"
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"
fi

say "GPU: ${gpus:-none}"
say "bundle: $bundle, commit $(cat "$bundle/COMMIT" 2>/dev/null || echo unknown)"
if ! runs_here kernel_trial; then
  step "build kernel_trial"
  if build_trial >>"$log" 2>&1; then
    record ok "build kernel_trial" "with the toolkit alone"
  else
    record FAILED "build kernel_trial" "see tests.log"
  fi
fi

# ---- tests
if wanted tests; then
  checked "kernels against loops" 90 "$bundle/bin/kernel_trial" check
  for name in cuda_on_gpu_test cuda_conformance_on_gpu_test; do
    if runs_here "$name"; then
      checked "$name" 100 "$bundle/bin/$name" --gtest_brief=1
    else
      missing "$name" "none that runs here: deploy/bundle.sh --with_tests"
    fi
  done
fi

# ---- benchmarks and the service
measure() {
  local part="$1" limit="$2" program="$3"
  if [ -z "$gpus" ]; then
    record skipped "$part" "no GPU"
  elif ! runs_here "$program"; then
    missing "$part" "no $program that runs here: deploy/bundle.sh --with_tests"
  else
    checked "$part" "$limit" python3 tests/gpu/measure_gpu.py --bundle "$bundle" --out "$out" \
      --part "$part"
  fi
}
wanted kernels && measure kernels 100 kernel_trial
wanted ladder && measure ladder 210 solver_bench
wanted sweep && measure sweep 130 sweep_bench
wanted service && measure service 70 deeppcr-server

# ---- sanitizer
sanitizer() {
  local tool="$1"
  compute-sanitizer --tool "$tool" --error-exitcode 1 --target-processes all \
    "$bundle/bin/kernel_trial" check small || return
  [ ! -x "$bundle/bin/cuda_conformance_on_gpu_test" ] ||
    compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$bundle/bin/cuda_conformance_on_gpu_test" --gtest_filter='*GivenNoise*cuda*' || return
  [ ! -x "$bundle/bin/cuda_on_gpu_test" ] ||
    compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$bundle/bin/cuda_on_gpu_test" --gtest_filter='*WideDenoisers*'
}
# If a virtual machine hides what the tool needs, the tool says so and checks nothing.
sanitizer_runs() {
  compute-sanitizer --tool memcheck "$bundle/bin/kernel_trial" check tiny >"$out/.part" 2>&1
  cat "$out/.part" >>"$log"
  ! grep -qi 'device not supported\|unable to initialize\|no GPU' "$out/.part"
}
if wanted sanitizer; then
  export -f sanitizer
  export bundle
  if ! command -v compute-sanitizer >/dev/null 2>&1; then
    record skipped "compute-sanitizer" "not installed"
  elif [ -n "$gpus" ] && ! sanitizer_runs; then
    record skipped "compute-sanitizer" "cannot run on this machine: see tests.log"
  else
    for tool in memcheck racecheck synccheck; do
      checked "compute-sanitizer $tool" 60 bash -c "sanitizer $tool"
    done
  fi
fi

rm -f "$out/.part"
{
  printf 'GPU: %s\ncommit: %s\n' "${gpus:-none}" "$(cat "$bundle/COMMIT" 2>/dev/null || echo unknown)"
  printf '%s\n' "${summary[@]}"
  say "$((SECONDS - start)) s, $executed parts ran, $failures failed"
} | tee "$out/summary.txt"
if [ -z "$gpus" ] && [ "$failures" -eq 0 ]; then
  say "no GPU here: nothing was launched"
  exit 77
fi
[ "$failures" -eq 0 ] && [ "$executed" -gt 0 ]
