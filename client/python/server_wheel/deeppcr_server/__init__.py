# SPDX-License-Identifier: Apache-2.0
"""The server of DeepPCR Serve and its engine, for deeppcr.serve and deeppcr.Engine."""

import pathlib

_FOLDER = pathlib.Path(__file__).resolve().parent

BINARY = _FOLDER / "bin/deeppcr-server"
LIBRARY = _FOLDER / "lib/libdeeppcr.so"
