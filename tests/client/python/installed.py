# SPDX-License-Identifier: Apache-2.0
"""Installs the package from this checkout into a folder of its own, as `pip install` does."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / 'client/python'


def copy_of_package(folder):
    """The sources beside the protocol, as in a checkout: a build writes into them."""
    copy = pathlib.Path(folder) / 'client/python'
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns('__pycache__', 'build', '*.egg-info',
                                                                 '*.binpb'))
    shutil.copytree(ROOT / 'proto', pathlib.Path(folder) / 'proto')
    return copy


def install(source, target):
    """`source`: a folder, a wheel or a source distribution."""
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--no-build-isolation',
                    '--disable-pip-version-check', '--target', str(target), str(source)], check=True)


_folder = tempfile.TemporaryDirectory()


def sources_on_path():
    """The same without pip, by protoc, for a Python of the system."""
    sources = copy_of_package(pathlib.Path(_folder.name) / 'sources')
    subprocess.run(['protoc', f'-I{ROOT / "proto"}',
                    f'--descriptor_set_out={sources / "deeppcr/protocol.binpb"}',
                    'deeppcr/v1/deeppcr.proto'], check=True)
    sys.path.insert(0, str(sources))


def on_path():
    """Makes `import deeppcr` find a fresh installation."""
    folder = pathlib.Path(_folder.name)
    install(copy_of_package(folder / 'sources'), folder / 'site')
    sys.path.insert(0, str(folder / 'site'))
