#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/install.sh [--list] PROFILE...
#
# Installs the Debian packages that a profile needs and this machine lacks; does nothing when all
# are there. Profiles:
#   build   compiler, CMake, Ninja and the libraries of the server and the client
#   test    demo, the test frameworks, a Prometheus to scrape the server with, and PyTorch to export
#           networks that are served
#   fuzz    clang with libFuzzer
#   demo    build, and Python with NumPy and Pillow for the picture
#   bench   demo, and PyTorch, also with OpenBLAS, for the benchmark to compare with
#   image   an engine that builds the image of the Dockerfile, and what makes its base
#   peers   demo, and Eigen and Python's venv, for what else the benchmark compares with
# --list prints the package names, one per line, and installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/lib.sh

build_packages=(g++ cmake ninja-build protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libgrpc++-dev libabsl-dev libssl-dev prometheus-cpp-dev libmicrohttpd-dev libcurl4-openssl-dev
  nlohmann-json3-dev libcli11-dev libpng-dev libonnx-dev zlib1g-dev)

packages_of() {
  case "$1" in
    build) printf '%s\n' "${build_packages[@]}" ;;
    test) packages_of demo && printf '%s\n' libgtest-dev libgmock-dev libboost-context-dev openssl \
      python3-yaml python3-venv python3-pip python3-setuptools python3-wheel python3-torch \
      python3-grpcio python3-protobuf prometheus prometheus-alertmanager libb64-0d ;;
    fuzz) printf '%s\n' clang-14 libclang-rt-14-dev llvm-14 ;;
    image) printf '%s\n' buildah debootstrap ;;
    demo) packages_of build && printf '%s\n' python3 python3-numpy python3-pil ;;
    bench) packages_of demo && printf '%s\n' python3-torch libopenblas0-pthread \
      python3-grpcio python3-protobuf ;;
    peers) packages_of demo && printf '%s\n' libeigen3-dev python3-venv ;;
    *) unknown_flag "$1" ;;
  esac
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo -- "$@"
  else
    fail "installing packages needs root, and there is no sudo; as root run: apt-get install $missing_line"
  fi
}

apt_install() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

# Debian starts what is freshly installed of Prometheus; the tests only want its binaries.
stop_packaged_prometheus() {
  if [ -d /run/systemd/system ]; then
    as_root systemctl disable --now prometheus.service prometheus-node-exporter.service \
      prometheus-alertmanager.service \
      >/dev/null 2>&1 || true
  fi
}

list_only=false
profiles=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --list) list_only=true ;;
    --*) unknown_flag "$1" ;;
    *) profiles+=("$1") ;;
  esac
  shift
done
[ ${#profiles[@]} -gt 0 ] || { usage_of "$0" >&2; exit 2; }

# Two steps, so that an unknown profile ends the script and not only a subshell.
wanted_lines="$(for profile in "${profiles[@]}"; do packages_of "$profile"; done)"
mapfile -t wanted < <(printf '%s\n' "$wanted_lines" | sort -u)
if $list_only; then
  printf '%s\n' "${wanted[@]}"
  exit 0
fi
command -v apt-get >/dev/null 2>&1 ||
  fail "this is no Debian system (no apt-get); install what matches these Debian 12 packages: ${wanted[*]}"

missing=()
for package in "${wanted[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "packages (${profiles[*]}): all ${#wanted[@]} are installed"
  exit 0
fi
missing_line="${missing[*]}"
say "packages (${profiles[*]}): installing ${#missing[@]} of ${#wanted[@]}: $missing_line"
if ! apt_install "${missing[@]}"; then
  say "apt-get failed; trying once more in 5 seconds"
  sleep 5
  apt_install "${missing[@]}" ||
    fail "apt-get could not install: $missing_line. Is the network up, and does this machine's package source carry Debian 12?"
fi
case " $missing_line " in
  *" prometheus"*) stop_packaged_prometheus ;;
esac
