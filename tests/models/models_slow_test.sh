#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/models/models_slow_test.sh PYTHON MODELS_TEST_FLAG...
#
# Both exporters of the current PyTorch, on small and on published sizes. Skips visibly if there is
# no such Python; where it is, whatever is wrong fails.
set -euo pipefail
python="$1"
shift
if [ ! -x "$python" ]; then
  echo "skipped: no $python; tests/run.sh --full makes it where PyPI is reached"
  exit 77
fi
folder="$(dirname "$0")"
for sizes in small published; do
  "$python" -B -W ignore "$folder/models_test.py" --sizes "$sizes" \
    --exporters torchscript dynamo "$@"
done
"$python" -B -W ignore "$folder/stack_test.py" --exporters torchscript dynamo "$@"
