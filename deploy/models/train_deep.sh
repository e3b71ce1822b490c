#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/models/train_deep.sh [--steps N] [--build_dir DIR] [--no_build] [--output DIR]
#                                    [--no_torch] [--full] [--threads N] [--results FILE]
#
# Trains a ResNet of 1024 layers, width 16, on handwritten digits from nothing, by `deeppcr train`:
# with sequential and with parallel gradients from one seed, and by PyTorch from the same first
# parameters through the same batches. Draws the loss curves of all of them into one picture, and
# writes time per step and held-out accuracy, with and without the layers between input and output.
# Kills a run with SIGKILL and takes it up again: the same bits come out.
#
# The network is one that cannot do without its layers: the input layer writes the first 8 elements of
# the state, the output layer reads the other 8 (`--split_state 8`). z_0 straight to the trained output
# layer is then the same answer for every image. No other readout of z_0 is fitted, which could know
# the digits, as any linear classifier of the pixels does.
#   --steps N         fewer than the experiment's 660; then nothing is asked of the accuracy
#   --build_dir DIR   default: build/release
#   --no_build        use the binaries in --build_dir
#   --output DIR      models, logs; default: build/train-deep
#   --no_torch        without PyTorch
#   --full            with the current PyTorch, from PyPI, in build/torch; default: Debian's
#   --threads N       of all of them; default: 1
#   --results FILE    result file, and beside it a picture of the same name; default: training.json in
#                     --output (the committed one is tests/bench/results/cpu/training.json)
# Exit status: 0 only if at least 95 % of held-out digits are right and at most 50 % without the layers,
# the losses of both ways are within 1e-3 over the first 100 steps, and the run that was killed ends with
# the bits of the one that was not.
set -euo pipefail
command_line="deploy/models/train_deep.sh $*"
cd "$(dirname "$0")/../.."
. deploy/lib.sh

steps=660
build_dir=build/release
build=true
output=build/train-deep
torch=true
full=false
threads=1
results=
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --steps) steps="$(flag_value "$@")"; shift ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --no_build) build=false ;;
    --output) output="$(flag_value "$@")"; shift ;;
    --no_torch) torch=false ;;
    --full) full=true ;;
    --threads) threads="$(flag_value "$@")"; shift ;;
    --results) results="$(flag_value "$@")"; shift ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done

models=deploy/models
config=$models/repository/digits-resnet/1/config.json
python="$(find_python 'numpy, PIL')" ||
  fail "no Python with NumPy and Pillow; deploy/install.sh demo installs it"
torch_python=
if $torch && $full; then
  make_environment torch tests/models/requirements.txt || fail "PyPI is not reached"
  torch_python=build/torch/bin/python
elif $torch; then
  torch_python="$(find_python 'numpy, torch')" || say "no Python with PyTorch: its curve is left out"
fi
if $build; then
  deploy/build.sh --build_dir "$build_dir" --target deeppcr
fi
commit="$("$python" -B -c "
import sys
sys.path.insert(0, 'tests/bench')
import measure_cpu
print(measure_cpu.commit())")"
rm -rf "$output/runs"
mkdir -p "$output/runs"
mapfile -t shared < <("$python" -B -c "
import sys
sys.path.insert(0, '$models/deep')
import experiment
print(*experiment.flags($steps), sep='\n')")

# Sets `command` to a run that publishes $output/runs/NAME/1. Arguments: NAME, flags.
set_command() {
  local name="$1"
  shift
  command=("$build_dir/client/deeppcr" train --config "$config" --data $models/data/digits_train.npz
    --validation_inputs $models/data/digits_heldout.npy
    --validation_targets $models/data/digits_heldout_labels.npy --repository "$output/runs"
    --model "$name" --checkpoint "$output/runs/$name.checkpoint" --log "$output/runs/$name.jsonl"
    --threads "$threads" --seed 1 "$@")
}
train() {
  set_command "$@"
  "${command[@]}" >/dev/null 2>"$output/runs/$1.txt" || fail "$(cat "$output/runs/$1.txt")"
  cat "$output/runs/$1.txt"
}

for way in sequential parallel; do
  step "$way gradients"
  train "$way" "${shared[@]}" --way "$way" --curves "$output/runs/$way.png"
done

step "a run that is killed, and taken up again"
checkpoint="$output/runs/killed.checkpoint"
set_command killed "${shared[@]}" --checkpoint_every 1 --quiet
"${command[@]}" >/dev/null &
victim=$!
until [ -s "$checkpoint" ] || ! kill -0 "$victim" 2>/dev/null; do sleep 0.01; done
sleep 0.05
kill -KILL "$victim" 2>/dev/null || fail "the run ended before it could be killed; give more --steps"
wait "$victim" 2>/dev/null || true
train killed "${shared[@]}" --checkpoint_every 1 --resume
same=false
cmp "$output/runs/sequential/1/model.safetensors" "$output/runs/killed/1/model.safetensors" && same=true

if [ -n "$torch_python" ]; then
  step "PyTorch"
  # What a step with a learning rate of zero leaves are the first parameters.
  train first --learning_rate 0 --steps 1 --split_state 8 --quiet
  OMP_NUM_THREADS="$threads" OPENBLAS_NUM_THREADS="$threads" "$torch_python" -B \
    $models/deep/train_by_torch.py --first "$output/runs/first/1/model.safetensors" \
    --config "$config" --data $models/data --steps "$steps" --log "$output/runs/PyTorch.jsonl"
fi

step "what came out"
"$python" -B $models/deep/report.py --runs "$output/runs" --steps "$steps" --same_bits "$same" \
  --torch_python "$torch_python" \
  --threads "$threads" --commit "$commit" --command "${command_line% }" --results "${results:-$output/training.json}"
