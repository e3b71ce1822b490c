#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tritonclient_test.sh PYTHON SERVER_BINARY; skips visibly if there is no such Python.
if [ ! -x "$1" ]; then
  echo "skipped: no $1; tests/run.sh makes it where PyPI is reached"
  exit 77
fi
exec "$1" "$(dirname "$0")/tritonclient_test.py" "$2"
