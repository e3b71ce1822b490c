# SPDX-License-Identifier: Apache-2.0
"""Puts a description of the protocol into the package, made from proto/deeppcr/v1/deeppcr.proto.

The package has descriptors in place of generated code: these are read by every release of protobuf
since 3.20, while generated code is of one release.
"""

import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
SOURCE = "deeppcr/v1/deeppcr.proto"
NAME = "deeppcr/protocol.binpb"
PIP_PROTOC = [sys.executable, "-m", "grpc_tools.protoc"]


def write_protocol(folder):
    target = pathlib.Path(folder) / NAME
    if not (PROTO / SOURCE).is_file():
        # A source distribution has the description, and no protocol beside it.
        if (HERE / NAME).is_file():
            return
        raise SystemExit(f"{PROTO / SOURCE} is not there: build from a whole checkout")
    target.parent.mkdir(parents=True, exist_ok=True)
    # The same compiler as a program, or as pip brings it.
    protoc = ["protoc"] if shutil.which("protoc") else PIP_PROTOC
    subprocess.run([*protoc, f"-I{PROTO}", f"--descriptor_set_out={target}", SOURCE], check=True)


class BuildWithProtocol(build_py):
    def run(self):
        super().run()
        write_protocol(HERE if self.editable_mode else self.build_lib)


class SourceWithProtocol(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_protocol(base_dir)


setup(cmdclass={"build_py": BuildWithProtocol, "sdist": SourceWithProtocol})
