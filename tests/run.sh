#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/run.sh [--full] [--only PART] [--jobs N] [--no_install]
#
# Runs the tests from a fresh clone: installs missing packages, checks sources and scripts, builds
# once with warnings as errors (in build/test), compiles the CUDA sources where a toolkit is found,
# and runs unit, conformance and integration tests and the replay of the fuzz corpora.
#   --full        also slow tests, the kernels for older GPUs, everything under ASan + UBSan, tests
#                 without gRPC under TSan, and every fuzzer for 60 seconds (FUZZ_SECONDS)
#   --only PART   of --full only plain, slow, asan, tsan or fuzz, as on a machine of several
#   --jobs N      build jobs; default: every core, 1.5 GiB of free memory each
#   --no_install  never call apt-get
# Exit status: 0 if every phase passed, 1 otherwise. A phase that fails does not stop the later
# ones that do not need it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. deploy/lib.sh

full=false
install=true
only=""
launcher=()
jobs="$(build_jobs)"
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --full) full=true ;;
    --only) full=true; only="$(flag_value "$@")" || exit 2; shift ;;
    --jobs) jobs="$(flag_value "$@")" || exit 2; shift ;;
    --no_install) install=false ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done

case "$only" in
  "" | plain | slow | asan | tsan | fuzz) ;;
  *) say "--only: expected plain, slow, asan, tsan or fuzz, got $only"; exit 2 ;;
esac

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
summary=()
failures=0

# Appends a line to the final summary: record STATUS NAME SECONDS [DETAIL].
record() {
  summary+=("$(printf '%-8s %-34s %5ds  %s' "$1" "$2" "$3" "${4:-}")")
  [ "$1" != FAILED ] || failures=$((failures + 1))
}

# phase NAME COMMAND...: runs the command, times it, records the outcome and returns it. The summary
# shows what the command writes to $work/detail.
phase() {
  local name="$1" started="$SECONDS" status=ok
  shift
  step "$name"
  : >"$work/detail"
  "$@" || status=FAILED
  record "$status" "$name" $((SECONDS - started)) "$(paste -sd ";" "$work/detail")"
  say "-- $name: $status after $((SECONDS - started)) s"
  [ "$status" = ok ]
}

skip() {
  step "$1"
  say "skipped: $2"
  record skipped "$1" 0 "$2"
}

install_packages() {
  if $full; then deploy/install.sh test fuzz image; else deploy/install.sh test; fi
}

build() {
  deploy/build.sh --preset "$1" --jobs "$jobs" "${@:2}" | tee "$work/build.log"
}

# run_ctest BUILD_DIR CTEST_ARGUMENT...: also fails if no test ran. A caller may set launcher to a
# command that runs ctest. One test more than processors: some wait for most of their time.
run_ctest() {
  local build_dir="$1" status=0
  shift
  "${launcher[@]}" ctest --test-dir "$build_dir" -j3 --output-on-failure --no-tests=error "$@" |
    tee "$work/ctest" || status=1
  grep -E 'tests passed' "$work/ctest" >>"$work/detail"
  return $status
}

# Keeps what ptxas reported about registers, shared memory and spills beside the kernels, if this
# build compiled them.
keep_resources() {
  local file=build/test/kernels/cuda/resources.txt
  grep -E "Compiling entry function|bytes spill|Used .* registers" "$work/build.log" |
    sed 's/^ptxas info *: //' >"$work/resources"
  [ ! -s "$work/resources" ] || cp "$work/resources" "$file"
  [ ! -s "$file" ] || say "registers and spills of each kernel: $file"
}

# Builds the CUDA module. If a toolkit is here, CMake must have found it too: deeppcr_cuda alone may
# be the stub.
compile_cuda() {
  local nvcc="$1"
  ninja -C build/test -t query deeppcr_cuda_kernels >/dev/null 2>&1 || {
    say "$nvcc is here, but build/test was configured with the stub of the CUDA module"
    return 1
  }
  cmake --build build/test --parallel "$jobs" --target deeppcr_cuda || return 1
  keep_resources
  "$nvcc" --version | grep -o 'release [^,]*' | sed "s|^|compiled by $nvcc, |" | tee "$work/detail"
}

# Compiles the kernels for GPUs without clusters, which what is shipped runs on too and build/test
# leaves out.
compile_for_older_gpus() {
  deploy/build.sh --preset test --build_dir build/older_gpus --jobs "$jobs" \
    --target deeppcr_cuda_kernels -- -DCMAKE_CUDA_ARCHITECTURES=80-virtual
}

# Looks at the instructions that nvcc makes of the kernels.
model_gpu() {
  tests/gpu/machine_model.py --nvcc "$1" --kept build/test/kernels/cuda/kept --check 2>&1 | tee "$work/model"
  local status="${PIPESTATUS[0]}"
  grep ceilings "$work/model" >>"$work/detail"
  return "$status"
}

# Whether a part of the tests was asked for.
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# Environments of PyPI's packages that the plain phases use.
declare -A plain_requirements=(
  [nvdisasm]=tests/gpu/nvdisasm_requirements.txt
  [tritonclient]=tests/integration/tritonclient_requirements.txt
  [python]=tests/client/python/requirements.txt)
plain_environment() { make_environment "$1" "${plain_requirements[$1]}"; }
plain_environments() {
  local name
  for name in "${!plain_requirements[@]}"; do plain_environment "$name"; done
}

plain_phases() {
  phase "sources and scripts" tests/lint/run.sh
  # Waits for the network while the compiler works.
  if $install; then plain_environments >/dev/null 2>&1 & fi
  local built=true nvcc
  phase "build (warnings are errors)" build test || built=false
  wait
  $built || return
  if nvcc="$(find_nvcc)"; then
    phase "CUDA module" compile_cuda "$nvcc"
    if $install && ! plain_environment nvdisasm; then
      skip "model of a GPU" "PyPI is not reached: what nvcc made of the kernels is not looked at"
    elif [ ! -d build/nvdisasm ] && ! command -v nvdisasm >/dev/null 2>&1; then
      skip "model of a GPU" "no nvdisasm: what nvcc made of the kernels is not looked at"
    else
      phase "model of a GPU" model_gpu "$nvcc"
    fi
  else
    skip "CUDA module" "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda"
  fi
  if $install && ! plain_environment tritonclient; then
    skip "tritonclient" "PyPI is not reached: the published client is not tested with"
  fi
  if $install && ! plain_environment python; then
    skip "Python client" "PyPI is not reached: the package is not tested"
  fi
  phase "tests" run_ctest build/test -LE slow
}

slow_phases() {
  local name
  phase "build of what is slow" build test --target all --target deeppcr_slow_tests || return
  if find_nvcc >/dev/null; then
    phase "CUDA kernels for older GPUs" compile_for_older_gpus
  else
    skip "CUDA kernels for older GPUs" "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda"
  fi
  if $install && ! make_environment torch tests/models/requirements.txt; then
    skip "current PyTorch" "PyPI is not reached: its exporters are not tested with"
  fi
  if $install && ! make_environment docs client/python/docs/requirements.txt; then
    skip "documents" "PyPI is not reached: the site of the Python package is not built"
  fi
  for name in envoy perf_analyzer; do
    if $install && ! make_environment "$name" "tests/integration/${name}_requirements.txt"; then
      skip "$name" "PyPI is not reached: it is not tested with"
    fi
  done
  phase "slow tests" run_ctest build/test -L slow
}

# Disables randomisation: ThreadSanitizer of GCC 12 cannot map its shadow if the kernel randomises
# more than 28 bits. Leaves out tests that look at many answers of the threads that other tests run:
# they take a quarter of an hour. Leaves out the test that counts threads, of which ThreadSanitizer
# has one of its own.
tsan_tests() {
  local launcher=()
  if [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ] &&
    setarch "$(uname -m)" -R true 2>/dev/null; then
    launcher=(setarch "$(uname -m)" -R)
  fi
  TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1" \
    run_ctest build/tsan -L no_grpc -LE slow \
    -E '^(activation_sweep|backward|c_api_unload|certificate.*|demo_plans|diffusion_conformance|digits.*|loose_tolerance|solver_conformance)_test$'
}

# Leaves out the tests of the cuda backend at many sizes, which take an hour on an executor of
# fibers: cuda_kernels_test, cuda_diffusion_test and cuda_wide_propagation_test take the same memory
# through the same kernels. Leaves out most of the demo models, whose requests integration tests send to
# smaller ones, tests of scripts, which run no code of ours, the overload test, which needs a
# server at full speed: a slow one does not fill its queue in a few seconds, the live scrape, whose
# pairs are measured only where they take a quarter of a second, and tests that load libdeeppcr into
# a Python, which has no AddressSanitizer in it.
asan_tests() {
  # The quarantine counts as memory of the server, and a test bounds that memory.
  local options=strict_init_order=1:quarantine_size_mb=64
  # Frames that are kept after their return cost the executor's fibers five times the time.
  local on_fibers='cuda_(kernels|diffusion|wide_propagation)'
  local left_out='cuda_(backend|conformance)|demo|demo_plans|deploy_.*|digits_ddpm|gpu_.*|live_scrape|model_gradients|overload|python_engine'
  local -x UBSAN_OPTIONS=print_stacktrace=1
  ASAN_OPTIONS="$options:detect_stack_use_after_return=1" \
    run_ctest build/asan -LE slow -E "^($on_fibers|$left_out)_test\$" &&
    ASAN_OPTIONS="$options" run_ctest build/asan -LE slow -R "^${on_fibers}_test\$"
}

asan_phases() {
  if $install && { ! plain_environment tritonclient || ! plain_environment python; }; then
    skip "Python clients, ASan + UBSan" "PyPI is not reached"
  fi
  phase "build, ASan + UBSan" build asan && phase "tests, ASan + UBSan" asan_tests
}

tsan_phases() {
  phase "build, TSan" build tsan --target deeppcr_tests_without_grpc && phase "tests, TSan" tsan_tests
}

fuzz_phases() {
  phase "build, fuzzers" build fuzz --target deeppcr_fuzzers &&
    phase "fuzzers" tests/fuzz/run.sh --build_dir build/fuzz --seconds "${FUZZ_SECONDS:-60}"
}

if $install; then
  phase "packages" install_packages || exit 1
fi
if wanted plain; then plain_phases; fi
for part in slow asan tsan fuzz; do
  if $full && wanted "$part"; then "${part}_phases"; fi
done

step "summary"
printf '%s\n' "${summary[@]}"
if [ "$failures" -gt 0 ]; then
  say "FAILED: $failures of ${#summary[@]} phases, after $((SECONDS / 60)) min $((SECONDS % 60)) s"
  exit 1
fi
say "all ${#summary[@]} phases passed or were skipped as shown, in $((SECONDS / 60)) min $((SECONDS % 60)) s"
