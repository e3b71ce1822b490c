#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/run.sh [--name NAME] [--build_dir DIR] [--skip_build] [--rounds N]
#                           [--seconds S] [--core N] [--blas FOLDER]... [--no_torch]
#                           [--no_ladder] [--no_sweep] [--no_rpc]
#        tests/bench/run.sh --stages [--build_dir DIR] [--skip_build]
#
# Measures the CPU: the ladder of solvers (networks and diffusion models) against PyTorch on the
# same core, the sweep over depths and widths, and the service, by both of its protocols, against an
# echo of equal payload and a server in Python. Prints tables and what the targets say, and writes
# tests/bench/results/cpu/NAME.json (default: ladder). No part of the tests: run it on a machine that
# does nothing else.
# deploy/readme_tables.py then fills the READMEs.
# With --stages it only counts the dependent stages of newton over the depth of a network, in half a
# minute, and writes tests/bench/results/cpu/stages.json and stages.png, the README's picture.
#   --build_dir DIR   default: build/bench
#   --skip_build      measure the programs that are there
#   --rounds N        rounds of the ladder (default 7); a ratio is formed within each
#   --seconds S       seconds of timed calls per rung and round (default 0.05)
#   --core N          core for the ladder and the sweep (default: the last one)
#   --blas FOLDER     folder with a libblas.so.3 for PyTorch; the faster one is the baseline
#                     (default: each of Debian's that is there)
set -euo pipefail
command_line="tests/bench/run.sh $*"
cd "$(dirname "$0")/../.."
. deploy/lib.sh

name=ladder
build_dir=build/bench
skip_build=false
stages=false
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --name) name="$(flag_value "$@")"; shift ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --skip_build) skip_build=true ;;
    --stages) stages=true ;;
    --rounds | --seconds | --core | --blas) arguments+=("$1" "$(flag_value "$@")"); shift ;;
    --no_torch | --no_ladder | --no_sweep | --no_rpc) arguments+=("$1") ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done

if $stages; then
  $skip_build || deploy/build.sh --preset bench --build_dir "$build_dir" --target stages_bench
  python="$(find_python 'numpy, PIL')" || fail "no Python with NumPy and Pillow; deploy/install.sh demo installs it"
  exec "$python" tests/bench/measure_stages.py --build "$build_dir" --command "${command_line% }"
fi
if ! $skip_build; then
  deploy/install.sh bench
  deploy/build.sh --preset bench --build_dir "$build_dir" \
    --target solver_bench --target sweep_bench --target rpc_bench --target deeppcr-server
fi
needs=numpy
case " ${arguments[*]} " in *" --no_torch "*) ;; *) needs=torch ;; esac
python="$(find_python "$needs")" ||
  fail "no Python with $needs; deploy/install.sh bench installs it"
"$python" tests/bench/measure_cpu.py --build "$build_dir" \
  --out "tests/bench/results/cpu/$name.json" --command "${command_line% }" "${arguments[@]}"
