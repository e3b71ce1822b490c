#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/kernels/program/onnx_nodes_test.sh ONNX_NODES_TEST [WORK_DIR]
#
# Runs the test binary ONNX_NODES_TEST on ONNX's own tests of its operators, which the Python package
# onnx brings: fetched from PyPI into WORK_DIR (default: a temporary folder, deleted afterwards).
# Without a network it says so and exits with 77, which ctest takes for skipped.
set -euo pipefail
binary="$(realpath "$1")"
work="${2:-}"
if [ -z "$work" ]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
fi
if [ ! -x "$work/venv/bin/python" ]; then
  python3 -m venv "$work/venv"
fi
if ! "$work/venv/bin/pip" install -q --disable-pip-version-check onnx==1.17.0; then
  echo "skipped: pip cannot install onnx==1.17.0" >&2
  exit 77
fi
folder="$("$work/venv/bin/python" -c \
  'import onnx, pathlib; print(pathlib.Path(onnx.__file__).parent / "backend/test/data/node")')"
DEEPPCR_ONNX_NODE_TESTS="$folder" "$binary"
