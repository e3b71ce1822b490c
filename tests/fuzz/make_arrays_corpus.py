#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of arrays: tests/fuzz/make_arrays_corpus.py (no arguments, no packages)."""

import io
import struct
import zipfile

import corpus_files


def npy(descr="<f4", shape="(2,)", data=struct.pack("<2f", 1, -2), order="False", version=1,
        header=None):
    text = header or f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def npz(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, contents in members:
            archive.writestr(zipfile.ZipInfo(name), contents, compression)
    return file.getvalue()


def changed(archive, old, new):
    assert archive.count(old) >= 1
    return archive.replace(old, new)


PAIR = [("inputs.npy", npy()), ("labels.npy", npy("<i8", "(1,)", struct.pack("<q", 7)))]
ONE = npz([("inputs.npy", npy())])
DEFLATED = npz([("inputs.npy", npy(shape="(64,)", data=bytes(256)))], zipfile.ZIP_DEFLATED)

CORPUS = {
    "accepted-f4": npy(),
    "accepted-f8": npy("<f8", "(1,)", struct.pack("<d", 0.1)),
    "accepted-i8": npy("<i8", "(2, 1)", struct.pack("<2q", -1, 2**53 + 1)),
    "accepted-i8-between-floats": npy("<i8", "(1,)", struct.pack("<q", 0x7d20004000000007)),
    "accepted-u1": npy("|u1", "(3,)", b"\x00\x7f\xff"),
    "accepted-version-2": npy(version=2),
    "accepted-scalar": npy(shape="()", data=struct.pack("<f", 3)),
    "accepted-no-elements": npy(shape="(0, 5)", data=b""),
    "accepted-not-finite": npy(data=struct.pack("<2f", float("nan"), float("inf"))),
    "accepted-other-order": npy(header="{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}"),
    "accepted-npz": npz(PAIR),
    "accepted-npz-deflated": DEFLATED,
    "accepted-npz-empty": npz([]),
    "accepted-npz-comment": ONE[:-2] + b"\x02\x00hi",
    "refused-empty": b"",
    "refused-magic": b"\x93NUMPX\x01\x00",
    "refused-version": npy(version=3),
    "refused-header-cut": npy()[:20],
    "refused-big-endian": npy(">f4"),
    "refused-fortran": npy(order="True"),
    "refused-code": npy(header="__import__('os')"),
    "refused-negative": npy(shape="(-2,)"),
    "refused-overflow": npy(shape="(4294967296, 4294967296)"),
    "refused-huge": npy(shape="(1099511627776,)"),
    "refused-zero-times-huge": npy(shape="(0, 9223372036854775808)", data=b""),
    "refused-short": npy()[:-1],
    "refused-long": npy() + b"\0",
    "refused-beyond-float": npy("<f8", "(1,)", struct.pack("<d", 1e300)),
    "refused-npz-cut": ONE[:-1],
    "refused-npz-checksum": changed(ONE, struct.pack("<f", -2), struct.pack("<f", -3)),
    "refused-npz-twice": npz([("a.npy", npy()), ("b.npy", npy())]).replace(b"b.npy", b"a.npy"),
    "refused-npz-name": npz([("inputs.txt", npy())]),
    "refused-npz-inside": npz([("inputs.npy", npy()[:-1])]),
    # The size that the directory claims, in both records.
    "refused-npz-more-than-said": changed(
        DEFLATED, struct.pack("<I", len(npy(shape="(64,)", data=bytes(256)))), struct.pack("<I", 9)),
    "refused-npz-less-than-said": changed(
        DEFLATED, struct.pack("<I", len(npy(shape="(64,)", data=bytes(256)))),
        struct.pack("<I", 2**30 - 1)),
    "refused-npz-many": npz([(f"{i}.npy", npy(shape="()", data=b"\0\0\0\0")) for i in range(65)]),
    "refused-npz-bzip": npz([("inputs.npy", npy())], zipfile.ZIP_BZIP2),
}

if __name__ == "__main__":
    corpus_files.write("arrays", CORPUS)
