# SPDX-License-Identifier: Apache-2.0
"""Where things are, and what the digits scripts lend: safetensors_file (data and trainer, to training)."""

import pathlib
import sys

MODELS = pathlib.Path(__file__).resolve().parent.parent    # deploy/models

# Appended to the path, so that this folder's own modules come first where names are equal.
sys.path.append(str(MODELS / "digits"))

import safetensors_file    # noqa: E402, F401  pylint: disable=wrong-import-position,unused-import
