# SPDX-License-Identifier: Apache-2.0
"""The wheel deeppcr-server; deploy/wheels.sh puts the binaries there and builds it."""

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class OfAPlatform(Distribution):
    def has_ext_modules(self):
        return True


class ForEveryPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    name="deeppcr-server",
    version="0.1.0",
    description="The server of DeepPCR Serve, for CPUs, and its engine as a library",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=["deeppcr_server"],
    package_data={"deeppcr_server": ["bin/*", "lib/*"]},
    distclass=OfAPlatform,
    cmdclass={"bdist_wheel": ForEveryPython},
)
