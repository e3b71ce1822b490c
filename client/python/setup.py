# SPDX-License-Identifier: Apache-2.0
"""Puts a description of the protocol into the package, made from proto/deeppcr/v1/deeppcr.proto.

The package has descriptors in place of generated code: these are read by every release of protobuf
since 3.20, while generated code is of one release.
"""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
SOURCE = "deeppcr/v1/deeppcr.proto"
NAME = "deeppcr/protocol.binpb"


def write_protocol(folder):
    target = pathlib.Path(folder) / NAME
    if not (PROTO / SOURCE).is_file():
        # A source distribution has the description, and no protocol beside it.
        if (HERE / NAME).is_file():
            return
        raise SystemExit(f"{PROTO / SOURCE} is not there: build from a whole checkout")
    from grpc_tools import protoc

    target.parent.mkdir(parents=True, exist_ok=True)
    status = protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={target}", SOURCE])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


class BuildWithProtocol(build_py):
    def run(self):
        super().run()
        write_protocol(HERE if self.editable_mode else self.build_lib)


class SourceWithProtocol(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_protocol(base_dir)


setup(cmdclass={"build_py": BuildWithProtocol, "sdist": SourceWithProtocol})
