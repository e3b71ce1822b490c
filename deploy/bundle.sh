#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/bundle.sh [--output DIR] [--build_dir DIR] [--with_tests] [--jobs N]
#
# Makes a folder that runs wherever it is copied to, on an x86-64 machine with the C and C++
# runtimes of Debian 12 or newer: bin/ (server and client), lib/ (the CUDA module and every library
# that Debian's base system does not have), models/, COMMIT. The GPU's driver is the machine's own.
# DIR.tar.gz has the same, packed.
#   --output DIR      default: build/bundle-output; replaced
#   --build_dir DIR   default: build/bundle
#   --with_tests      add the programs that tests/gpu/run.sh runs
#   --jobs N          as for deploy/build.sh
# Fails if DIR.tar.gz exceeds 32 MiB, or 44 MiB with tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/lib.sh

output=build/bundle-output
build_dir=build/bundle
with_tests=false
jobs=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --output) output="$(flag_value "$@")"; shift ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --with_tests) with_tests=true ;;
    --jobs) jobs=(--jobs "$(flag_value "$@")"); shift ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done
max_mib=32
$with_tests && max_mib=44

targets=(--target deeppcr-server --target deeppcr --target deeppcr_cuda)
programs=("$build_dir/server/deeppcr-server" "$build_dir/client/deeppcr")
options=()
if $with_tests; then
  # For Hopper only, the GPU that tests run on: every program holds all kernels. No test there sends
  # traces, for which libcurl brings fifteen more libraries.
  options=(-DDEEPPCR_ENABLE_OTLP=OFF -DDEEPPCR_BUILD_TESTS=ON -DDEEPPCR_BUILD_BENCHMARKS=ON -DCMAKE_CUDA_ARCHITECTURES=90-real)
  for name in tests/gpu/kernel_trial tests/gpu/micro_trial tests/gpu/cuda_on_gpu_test \
    tests/gpu/cuda_conformance_on_gpu_test tests/bench/solver_bench tests/bench/sweep_bench; do
    targets+=(--target "$(basename "$name")")
    programs+=("$build_dir/$name")
  done
fi
# The old kind of search path (RPATH), which also serves libraries that a library loads in turn.
deploy/build.sh --preset release --build_dir "$build_dir" "${jobs[@]}" "${targets[@]}" -- \
  "${options[@]}" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags

rm -rf "$output"
mkdir -p "$output/bin" "$output/lib"
for program in "${programs[@]}"; do
  strip -o "$output/bin/$(basename "$program")" "$program"
done
module="$build_dir/kernels/libdeeppcr_cuda.so"
strip --strip-unneeded -o "$output/lib/libdeeppcr_cuda.so" "$module"

# True for libraries of the base system: the C and C++ runtimes.
is_base() {
  case "$(basename "$1")" in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libstdc++.so* | \
      libgcc_s.so*) return 0 ;;
  esac
  return 1
}
libraries="$(for binary in "${programs[@]}" "$module"; do
  ldd "$binary" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u)"
for library in $libraries; do
  is_base "$library" || install -m 644 "$(readlink -f "$library")" "$output/lib/$(basename "$library")"
done
cp -r deploy/models/repository "$output/models"
# The CUDA sources and the nvcc that the programs are of, which results have to name.
cp "$build_dir/kernels/cuda_key.txt" "$output/CUDA_KEY"
{ git rev-parse --short=12 HEAD && git status --porcelain | grep -q . && echo dirty; } 2>/dev/null |
  paste -sd- >"$output/COMMIT" || true

tar -C "$(dirname "$output")" -czf "$output.tar.gz" "$(basename "$output")"
mib="$(du -m "$output.tar.gz" | cut -f1)"
say "$output: $(du -sm "$output" | cut -f1) MiB, packed $mib MiB, commit $(cat "$output/COMMIT")"
[ "$mib" -le "$max_mib" ] || fail "$output.tar.gz takes $mib MiB, more than $max_mib"
