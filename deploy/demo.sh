#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/demo.sh [--keep] [--build_dir DIR] [--output DIR] [--cuda auto|on|off]
#                       [--no_install] [--no_build]
#
# From a fresh clone to answers: installs what is missing, builds the release, starts the server on
# free ports with trained models, classifies held-out digits through several solvers and checks that
# their labels agree, generates new digits and judges them, draws pictures of both, and compares the
# solvers' timings.
#   --keep            leave the server running, and say how to reach and stop it
#   --build_dir DIR   default: build/release
#   --output DIR      pictures, answers and logs; default: demo-output
#   --cuda WHEN       build the CUDA module: auto (default), on, off
#   --no_install      never call apt-get
#   --no_build        use the binaries in --build_dir
# Exit status: 0 only if newton and auto gave sequential's label for every held-out digit, newton
# and picard generated sequential's samples, so did the same network as exported from PyTorch, and
# all samples are as good as deploy/models/README.md says.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/lib.sh

keep=false
install=true
build=true
build_dir=build/release
output=demo-output
cuda=auto
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --keep) keep=true ;;
    --no_install) install=false ;;
    --no_build) build=false ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --output) output="$(flag_value "$@")"; shift ;;
    --cuda) cuda="$(flag_value "$@")"; shift ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done

models=deploy/models/repository
inputs=deploy/models/data/digits_heldout.npy
labels=deploy/models/data/digits_heldout_labels.npy
# Sequential comes first: the other solvers are compared with it.
solvers=(sequential newton quasi_newton picard auto)
# The plan's settings are the fastest on this machine; short shooting intervals suit a GPU.
rows=(sequential newton newton,shooting_interval=1 newton,shooting_interval=16 quasi_newton picard
  auto)
server_pid=

stop_server() {
  [ -n "$server_pid" ] || return 0
  local pid="$server_pid" status=0
  server_pid=
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" || status=$?
  say "the server stopped with status $status"
  return $status
}
trap 'stop_server >/dev/null 2>&1 || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

show_log_and_fail() {
  tail -n 20 "$output/server.log" >&2
  fail "$1; its log: $output/server.log"
}

# Waits until the server has written its ports, which it does when its models are ready. Prints the
# last line of its log every five seconds.
await_server() {
  local waited=0
  until [ -s "$output/ports.json" ]; do
    kill -0 "$server_pid" 2>/dev/null || show_log_and_fail "the server did not start"
    [ "$waited" -lt 1200 ] || show_log_and_fail "the server was not ready after 5 minutes"
    sleep 0.25
    waited=$((waited + 1))
    if [ $((waited % 20)) = 0 ]; then
      say "  $((waited / 4)) s: $(tail -n 1 "$output/server.log" | cut -c 1-140)"
    fi
  done
}

start_server() {
  rm -f "$output/ports.json"
  "$build_dir/server/deeppcr-server" --model_repository="$models" --listen=127.0.0.1:0 \
    --http_listen=127.0.0.1:0 --port_file="$output/ports.json" --shadow_rate=0.2 \
    --plan_cache_dir="$output/plans" --log_format=text >"$output/server.log" 2>&1 &
  server_pid=$!
  await_server
}

startup_value() {
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' \
    "$output/ports.json" "$1"
}

deeppcr() {
  "$build_dir/client/deeppcr" "$@"
}

classify() {
  local solver outputs=()
  for solver in "${solvers[@]}"; do
    printf '  %-14s' "$solver"
    deeppcr forward --model "$1" --in "$inputs" --out "$output/$1-$solver.npy" \
      --solver "$solver" 2>&1
    outputs+=("$solver=$output/$1-$solver.npy")
  done
  "$python" -B deploy/demo/labels.py --inputs "$inputs" --labels "$labels" \
    --picture "$output/$1.png" --must_agree "newton,auto" "${outputs[@]}"
}

# generate MODEL [NAME=FILE]: draws the same samples with sequential, newton and picard, and compares
# them with the file's, or sequential's. The tolerance, 1e-4, is on the states; a decoder may
# amplify it.
generate() {
  local solver outputs=("${@:2}")
  for solver in sequential newton picard; do
    deeppcr generate "$1" --num 16 --seed 1 --solver "$solver" --out "$output/$1-$solver.npy" \
      | sed -n '1,3p'
    outputs+=("$solver=$output/$1-$solver.npy")
  done
  "$python" -B deploy/demo/agree.py 1e-3 "${outputs[@]}"
}

# draw: many samples by `auto`, and a picture. judge: compares these samples with real data.
draw() {
  local model="$1"
  shift
  say
  deeppcr generate "$model" --seed 7 --out "$output/$model.npy" --png "$output/$model.png" "$@"
  say "picture: $output/$model.png"
}
judge() {
  "$python" -B deploy/models/diffusion/quality.py --model "$1" --samples "$output/$1.npy" "${@:2}"
}

compare_generation() {
  say
  say "$1, one sample:"
  deeppcr compare "$1" --num 1 --repetitions 5 --row sequential --row newton --row picard --row auto \
    "${@:2}" --json "$output/$1-compare.json" 2>/dev/null
  "$python" -B deploy/demo/stages.py "$1" "$output/$1-compare.json"
}

compare() {
  local row flags=()
  for row in "${rows[@]}"; do flags+=(--row "$row"); done
  say
  say "$1, one digit:"
  deeppcr compare --model "$1" --in "$inputs" --samples 1 --repetitions 20 "${flags[@]}" \
    --json "$output/$1-compare.json" 2>/dev/null
  "$python" -B deploy/demo/stages.py "$1" "$output/$1-compare.json"
}

if $install; then
  step "packages"
  deploy/install.sh demo
fi
python="$(find_python 'numpy, PIL')" || fail "no python3 with NumPy and Pillow; deploy/install.sh demo installs it"

if $build; then
  step "build (some minutes the first time)"
  deploy/build.sh --preset release --build_dir "$build_dir" --cuda "$cuda"
fi

step "server (measures its models before it is ready)"
mkdir -p "$output/plans"
start_server
[ "$(startup_value ready)" = True ] || show_log_and_fail "a model did not load"
http="http://127.0.0.1:$(startup_value http_port)"
DEEPPCR_SERVER="127.0.0.1:$(startup_value grpc_port)"
export DEEPPCR_SERVER
say "gRPC on $DEEPPCR_SERVER, HTTP on $http, log in $output/server.log"
deeppcr models

agreed=true
for model in digits-resnet digits-mlp; do
  step "held-out digits through $model"
  classify "$model" || agreed=false
  say "picture: $output/$model.png"
done
$agreed || fail "the solvers do not agree: see above"

step "new digits from digits-ddpm, a thousand reverse steps each"
generate digits-ddpm || fail "the solvers generate different samples: see above"
say "the same network as PyTorch exports it, against digits-ddpm:"
generate digits-ddpm-onnx "digits-ddpm=$output/digits-ddpm-sequential.npy" \
  || fail "the exported network generates different samples: see above"
good=true
draw digits-ddpm --num 256
judge digits-ddpm || good=false
draw digits-class --num 250 --class all --labels_out "$output/digits-class-labels.npy"
judge digits-class --labels "$output/digits-class-labels.npy" || good=false
draw digits-pixels --num 250 --class all --labels_out "$output/digits-pixels-labels.npy"
judge digits-pixels --labels "$output/digits-pixels-labels.npy" || good=false
draw swissroll-ddpm --num 500
judge swissroll-ddpm || good=false
$good || fail "the samples are worse than they should be: see above"

step "the same input through several solvers"
compare digits-resnet
compare digits-mlp
compare_generation digits-ddpm
compare_generation digits-ddpm-onnx
compare_generation digits-pixels --class 3

step "metrics ($http/metrics)"
"$python" -B deploy/demo/metrics.py "$http/metrics" 20

if $keep; then
  step "the server keeps running"
  say "try:   $build_dir/client/deeppcr --server $DEEPPCR_SERVER compare --model digits-resnet"
  say "probe: $http/readyz    metrics: $http/metrics"
  say "stop:  kill $server_pid"
  disown "$server_pid"
  server_pid=
else
  step "stop"
  stop_server
fi
say "newton and auto gave sequential's label for every held-out digit, newton and picard its samples"
