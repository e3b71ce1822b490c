#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: with_environment.sh PYTHON SCRIPT [ARGUMENT...]; skips visibly if there is no such Python.
if [ ! -x "$1" ]; then
  echo "skipped: no $1; tests/run.sh makes it where PyPI is reached"
  exit 77
fi
exec "$@"
