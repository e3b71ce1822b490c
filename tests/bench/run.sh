#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/bench/run.sh [--name NAME] [--build_dir DIR] [--skip_build] [--rounds N]
#                           [--seconds S] [--core N] [--blas FOLDER]... [--no_torch]
#                           [--no_ladder] [--no_sweep] [--no_rpc]
#        tests/bench/run.sh --stages [--build_dir DIR] [--skip_build]
#        tests/bench/run.sh --peers [--name NAME] [--build_dir DIR] [--skip_build] [--seconds S]
#                           [--core N] [--limit S] [--workloads W1,...] [--samples 1,...]
#                           [--engines ours,...]
#        tests/bench/run.sh --models [--name NAME] [--build_dir DIR] [--skip_build] [--seconds S]
#                           [--core N] [--samples 1,...] [--only MODEL,...] [--no_times]
#
#        tests/bench/run.sh --gradients [--name NAME] [--build_dir DIR] [--skip_build] [--rounds N]
#                           [--seconds S] [--core N] [--blas FOLDER]... [--no_torch]
#        tests/bench/run.sh --against COMMIT,... [--name NAME] [--build_dir DIR] [--skip_build]
#        tests/bench/run.sh --guidance [--name NAME] [--build_dir DIR] [--skip_build] [--rounds N]
#                           [--core N]
#
# Measures the CPU: the ladder of solvers (networks and diffusion models) against PyTorch on the
# same core, the sweep over depths and widths, and the service, by both of its protocols, against an
# echo of equal payload and a server in Python. Prints tables and what the targets say, and writes
# tests/bench/results/cpu/NAME.json (default: ladder). No part of the tests: run it on a machine that
# does nothing else.
# deploy/readme_tables.py then fills the READMEs.
# With --stages it only counts the dependent stages of newton over the depth of a network, in half a
# minute, and writes tests/bench/results/cpu/stages.json and stages.png, the README's picture.
# With --peers it measures libdeeppcr against what users would take instead in their process: PyTorch
# eager and compiled, JAX, ONNX Runtime, OpenVINO, a loop over Eigen's products and a plain C loop,
# one thread each on one core, on the same model files and noise; and writes
# tests/bench/results/cpu/peers.json after every candidate. That takes three quarters of an hour. Their
# packages go into build/peers-venv (tests/bench/peers/requirements.txt); what cannot be had is a row
# that says so. A part of them is written to build/peers/part.json.
#   --limit S         seconds that a candidate gets to load, compile and answer (default 180)
#   --workloads, --samples, --engines
#                     a part of W1,W4,W5, of 1,8,64 and of the modules in tests/bench/peers
#                     (ours, c_engine, eigen_engine, jax_engine, ort_engine, openvino_engine,
#                     torch_engine)
# With --models it trains public models (tests/models/zoo.py) for seconds at their published sizes,
# exports them and measures libdeeppcr against the loops of their projects in PyTorch and against
# ONNX Runtime called for each step, in turns on one core; and writes tests/bench/results/cpu/
# models.json and, with what no clock decides, models-arithmetic.json. That takes ten minutes. PyTorch
# goes into build/torch (tests/models/requirements.txt). A part is written to build/models/part.json.
#   --only MODEL,...  models of zoo.py
#   --no_times        count the arithmetic that is left in the step, and measure nothing
# With --gradients it measures the way back through a ResNet of 1024 layers and a diffusion process of
# 1000 steps, and training steps, against autograd of PyTorch in eager mode, in turns on one core; and
# writes tests/bench/results/cpu/gradients.json. That takes some minutes.
# With --against it measures sequential solves against older commits, which it builds in build/against,
# in turns, and writes tests/bench/results/cpu/against.json. That takes ten minutes for a commit.
# With --guidance it measures what classifier-free guidance costs at the sizes of MAR's heads, and
# writes tests/bench/results/cpu/guidance.json. That takes a few minutes.
# For all:
#   --build_dir DIR   default: build/bench
#   --skip_build      measure the programs that are there
#   --rounds N        rounds of the ladder (default 7); a ratio is formed within each
#   --seconds S       seconds of timed calls per rung and round (default 0.05); with --peers of
#                     turns per candidate (default 3)
#   --core N          core for the ladder and the sweep (default: the last one)
#   --blas FOLDER     folder with a libblas.so.3 for PyTorch; the faster one is the baseline
#                     (default: each of Debian's that is there)
set -euo pipefail
command_line="tests/bench/run.sh $*"
cd "$(dirname "$0")/../.."
. deploy/lib.sh

# Installs package by package: one that is missing is a row that says so.
install_what_can_be_had() {
  local wanted
  /usr/bin/python3 -m venv build/peers-venv || return 0
  grep -v '^#' tests/bench/peers/requirements.txt | while read -r wanted; do
    build/peers-venv/bin/python -m pip install -q --disable-pip-version-check "$wanted" ||
      say "not installed: $wanted"
  done
}

name=
build_dir=build/bench
skip_build=false
stages=false
peers=false
models=false
gradients=false
guidance=false
against=
arguments=()
peers_arguments=()
models_arguments=()
models_file=
peers_file=
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --name) name="$(flag_value "$@")"; shift ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --skip_build) skip_build=true ;;
    --stages) stages=true ;;
    --peers) peers=true ;;
    --models) models=true ;;
    --gradients) gradients=true ;;
    --guidance) guidance=true ;;
    --against) against="$(flag_value "$@")"; arguments+=("$1" "$2"); shift ;;
    --seconds | --core)
      arguments+=("$1" "$(flag_value "$@")")
      peers_arguments+=("$1" "$2")
      models_arguments+=("$1" "$2")
      shift ;;
    --only) models_arguments+=(--models "$(flag_value "$@")"); models_file=build/models/part.json; shift ;;
    --no_times) models_arguments+=("$1") ;;
    --limit) peers_arguments+=("$1" "$(flag_value "$@")"); shift ;;
    --workloads | --samples | --engines)
      peers_arguments+=("$1" "$(flag_value "$@")")
      models_arguments+=("$1" "$2")
      peers_file=build/peers/part.json
      models_file=build/models/part.json
      shift ;;
    --rounds | --blas) arguments+=("$1" "$(flag_value "$@")"); shift ;;
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
if $peers; then
  if ! $skip_build; then
    deploy/install.sh peers
    deploy/build.sh --preset bench --build_dir "$build_dir" --target deeppcr_c
  fi
  say "packages of the peers: build/peers-venv"
  make_environment peers-venv tests/bench/peers/requirements.txt || install_what_can_be_had
  python=build/peers-venv/bin/python
  "$python" -c 'import numpy' 2>/dev/null || python="$(find_python numpy)" ||
    fail "no Python with numpy; deploy/install.sh peers installs it"
  exec "$python" -B tests/bench/peers/measure_peers.py --scratch build/peers \
    --library "$build_dir/kernels/c_api/libdeeppcr.so" \
    --out "${peers_file:-tests/bench/results/cpu/${name:-peers}.json}" \
    --command "${command_line% }" "${peers_arguments[@]}"
fi
if $models; then
  if ! $skip_build; then
    deploy/install.sh peers
    deploy/build.sh --preset bench --build_dir "$build_dir" --target deeppcr_c --target deeppcr-server
  fi
  say "PyTorch and ONNX Runtime: build/torch"
  make_environment torch tests/models/requirements.txt || fail "PyPI is not reached"
  exec build/torch/bin/python -B -W ignore tests/bench/models/measure_models.py --scratch build/models \
    --library "$build_dir/kernels/c_api/libdeeppcr.so" \
    --server_binary "$build_dir/server/deeppcr-server" \
    --out "${models_file:-tests/bench/results/cpu/${name:-models}.json}" \
    --command "${command_line% }" "${models_arguments[@]}"
fi
programs=(--target solver_bench --target sweep_bench --target rpc_bench --target deeppcr-server)
measure=measure_cpu.py
if $gradients; then
  programs=(--target gradient_bench)
  measure=measure_gradients.py
  name="${name:-gradients}"
fi
if [ -n "$against" ]; then
  programs=(--target engine_turns)
  measure=measure_against.py
  name="${name:-against}"
fi
if $guidance; then
  programs=(--target deeppcr-server --target deeppcr)
  measure=measure_guidance.py
  name="${name:-guidance}"
fi
if ! $skip_build; then
  deploy/install.sh bench
  deploy/build.sh --preset bench --build_dir "$build_dir" "${programs[@]}"
fi
needs=numpy
case " ${arguments[*]} " in *" --no_torch "* | *" --against "*) ;; *) needs=torch ;; esac
python="$(find_python "$needs")" ||
  fail "no Python with $needs; deploy/install.sh bench installs it"
"$python" "tests/bench/$measure" --build "$build_dir" \
  --out "tests/bench/results/cpu/${name:-ladder}.json" --command "${command_line% }" "${arguments[@]}"
