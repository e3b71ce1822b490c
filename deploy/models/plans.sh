#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/models/plans.sh [--server PATH] [--client PATH] [--models DIR]
#
# Writes plan.json beside the weights of every model: one plan per instruction set that this machine
# has, for any caches. Plans for other instruction sets are kept as they are.
#   --server PATH  default: build/release/server/deeppcr-server
#   --client PATH  default: build/release/client/deeppcr
#   --models DIR   the model repository; default: deploy/models/repository
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/lib.sh

server=build/release/server/deeppcr-server
client=build/release/client/deeppcr
models=deploy/models/repository
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --server) server="$(flag_value "$@")"; shift ;;
    --client) client="$(flag_value "$@")"; shift ;;
    --models) models="$(flag_value "$@")"; shift ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done

for program in "$server" "$client"; do
  [ -x "$program" ] || fail "$program is not there; deploy/build.sh makes it"
done

folder="$(mktemp -d)"
pid=
stop() {
  if [ -n "$pid" ]; then kill "$pid" 2>/dev/null && wait "$pid" || true; fi
  pid=
}
trap 'stop; rm -rf "$folder"' EXIT

# Starts the server with instruction set $1; fails if the machine lacks it.
start() {
  rm -f "$folder/ports.json"
  DEEPPCR_CPU_ISA="$1" "$server" --model_repository="$models" --backend=cpu --versions=all \
    --plan=measure --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --port_file="$folder/ports.json" \
    --log_level=error 2>"$folder/server.log" &
  pid=$!
  until [ -f "$folder/ports.json" ]; do
    kill -0 "$pid" 2>/dev/null || return 1
    sleep 0.1
  done
}

for isa in baseline avx2 avx512; do
  if ! start "$isa"; then
    say "left out $isa: $(tail -n 1 "$folder/server.log")"
    pid=
    continue
  fi
  port="$(sed -n 's/.*"grpc_port": *\([0-9]*\).*/\1/p' "$folder/ports.json")"
  for version in "$models"/*/*/; do
    name="$(basename "$(dirname "$version")")"
    "$client" --server "127.0.0.1:$port" plan "$name" --model_version "$(basename "$version")" \
      --any_caches --export "${version}plan.json"
  done
  stop
done
