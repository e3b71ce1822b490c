#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/build.sh [--preset NAME] [--build_dir DIR] [--prefix DIR] [--cuda auto|on|off]
#                        [--jobs N] [--target NAME]... [-- CMAKE_ARGUMENT...]
#
# The one build recipe, which the demo, the tests and the container image all use.
#   --preset NAME     a preset of CMakePresets.json (default: release)
#   --build_dir DIR   default: build/<preset>
#   --prefix DIR      also install into DIR: bin/, and lib/ for backend modules
#   --cuda WHEN       build the CUDA module: auto (if a toolkit is found; default), on, off
#   --jobs N          default: every core, but 1.5 GiB of free memory for each job
#   --target NAME     build this target only (may be repeated)
# Installs no packages: deploy/install.sh build does.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/lib.sh

preset=release
build_dir=
prefix=
cuda=
jobs=
targets=()
cmake_arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --preset) preset="$(flag_value "$@")"; shift ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --prefix) prefix="$(flag_value "$@")"; shift ;;
    --cuda) cuda="$(flag_value "$@")"; shift ;;
    --jobs) jobs="$(flag_value "$@")"; shift ;;
    --target) targets+=(--target "$(flag_value "$@")"); shift ;;
    --) shift; cmake_arguments+=("$@"); break ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done
: "${build_dir:=build/$preset}"
: "${jobs:=$(build_jobs)}"
[[ "$jobs" =~ ^[1-9][0-9]*$ ]] || fail "--jobs: expected a positive number, got '$jobs'"

case "$cuda" in
  "") ;;  # the preset decides
  auto | on | off) cmake_arguments+=("-DDEEPPCR_ENABLE_CUDA=${cuda^^}") ;;
  *) fail "--cuda: expected auto, on or off, got '$cuda'" ;;
esac
for tool in cmake ninja; do
  command -v "$tool" >/dev/null 2>&1 || fail "$tool not found; deploy/install.sh build installs it"
done
if command -v ccache >/dev/null 2>&1; then
  cmake_arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # Otherwise ccache leaves out sources with precompiled headers.
  export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros}"
fi

if [ -z "${CUDACXX:-}" ] && nvcc="$(find_nvcc)"; then
  export CUDACXX="$nvcc"
fi

say "configuring $build_dir (preset $preset, $jobs jobs)"
cmake --preset "$preset" -B "$build_dir" --log-level=STATUS "${cmake_arguments[@]}"
NINJA_STATUS='[%f/%t %es] ' cmake --build "$build_dir" --parallel "$jobs" "${targets[@]}"
if [ -n "$prefix" ]; then
  cmake --install "$build_dir" --prefix "$prefix" --strip
fi
