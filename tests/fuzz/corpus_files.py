# SPDX-License-Identifier: Apache-2.0
"""Where the make_*_corpus.py scripts put what they made."""

import pathlib

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def write(name, files):
    """Writes the files, by their stem, of one fuzzer's corpus."""
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    for stem, contents in files.items():
        (folder / stem).write_bytes(contents)
    print(f"{name}: {len(files)} files")
