#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and the header guards.

usage: include_rules.py [ROOT]

The layers and what each may include are the table LAYERS. Quoted includes must name a file of this
repository from its root, generated protobuf code (deeppcr/v1/..., inference/...), or a known library.
"""

import dataclasses
import pathlib
import re
import sys

# The part of the library that a server sees: the engine, and the headers that engine.h exposes.
ENGINE_API = (
    'kernels/engine.h',
    'kernels/plan/plan.h',
    'kernels/solver/options.h',
    'kernels/solver/report.h',
)
BASE = 'kernels/base/'
# The problem, and what host and device agree on: plain data and constexpr, for nvcc too.
PROBLEM = 'kernels/problem/'
ITERATION = 'kernels/iteration/'
PLAIN = (PROBLEM, ITERATION)
# Step programs: what they are, and their compiler.
PROGRAM = 'kernels/program/'
# The abstract backend. Its registry is left out: only the engine may ask which backends exist.
BACKEND = 'kernels/backend/'
BACKEND_REGISTRY = 'kernels/backend/registry'
BACKENDS = ('kernels/cpu/', 'kernels/cuda/', 'kernels/reference/')
PROTO = ('deeppcr/v1/', 'inference/')
GENERATED = 'generated/'  # what a build writes for a test
OF_SERVER = (BASE,) + ENGINE_API
RPC_LIBRARIES = ('grpc', 'grpcpp', 'google')
METRICS_LIBRARIES = ('prometheus', 'microhttpd.h', 'curl')
COMMAND_LINE_LIBRARIES = ('CLI',)
COMMON_LIBRARIES = ('absl', 'nlohmann')
TEST_LIBRARIES = ('gtest', 'gmock', 'benchmark')
# Sources that are compiled only where there is a CUDA toolkit. All others are compiled everywhere, and see none
# but headers of these: of the system, and of libraries that every build has. The standard library's have no ending.
WITH_TOOLKIT = ('kernels/cuda/cuda_module.cc', 'kernels/cuda/runtime/', 'tests/gpu/',
                'tests/kernels/cuda/runtime/cuda_device_test.cc', 'tests/kernels/cuda/runtime/nvrtc_test.cc',
                'tests/testing/simt/fake_')
OF_THE_SYSTEM = ('arpa', 'dirent.h', 'dlfcn.h', 'fcntl.h', 'immintrin.h', 'linux', 'malloc.h', 'math.h', 'net',
                 'netdb.h', 'netinet', 'poll.h', 'pthread.h', 'sanitizer', 'sched.h', 'signal.h', 'spawn.h', 'stddef.h',
                 'stdint.h', 'strings.h', 'sys', 'time.h', 'unistd.h')
OTHER_LIBRARIES = ('Eigen', 'boost', 'onnx', 'openssl', 'png.h', 'zlib.h')
PLANTED = 'planted_faults.h'  # by tests/testing/simt/plant_faults.py
CUDA_FORBIDDEN = COMMON_LIBRARIES + RPC_LIBRARIES + METRICS_LIBRARIES + COMMAND_LINE_LIBRARIES + TEST_LIBRARIES
EVERYWHERE = CUDA_FORBIDDEN + OF_THE_SYSTEM + OTHER_LIBRARIES + (PLANTED,)


@dataclasses.dataclass(frozen=True)
class Layer:
    """Files under `path` may include files under `own` and the libraries, and nothing else."""
    path: str  # a folder or prefix of names; with a final *, only files directly in the folder
    own: tuple
    libraries: tuple = COMMON_LIBRARIES
    forbidden: tuple = ()

    def holds(self, name):
        if self.path.endswith('*'):
            return name.startswith(self.path[:-1]) and '/' not in name[len(self.path) - 1:]
        return name.startswith(self.path)


# The first entry that holds a file applies to the file.
LAYERS = (
    Layer(BASE, (BASE,)),
    Layer(PROBLEM, (PROBLEM,), ()),
    Layer(ITERATION, PLAIN, ()),
    Layer(PROGRAM, (PROGRAM, BASE, PROBLEM), COMMON_LIBRARIES + ('onnx',)),
    Layer('kernels/model/', ('kernels/model/', PROGRAM, BASE, PROBLEM)),
    Layer('kernels/solver/', ('kernels/solver/', BASE, BACKEND) + PLAIN,
          forbidden=(BACKEND_REGISTRY,)),
    Layer('kernels/plan/', ('kernels/plan/', 'kernels/solver/', 'kernels/model/', BASE, BACKEND) + PLAIN,
          forbidden=(BACKEND_REGISTRY,)),
    Layer(BACKEND_REGISTRY, (BACKEND, BASE) + BACKENDS),
    Layer(BACKEND, (BACKEND, BASE) + PLAIN),
    *(Layer(folder, (folder, PROGRAM, BACKEND, BASE) + PLAIN, forbidden=(BACKEND_REGISTRY,))
      for folder in BACKENDS),
    # Training drives solvers on a backend that it asks for by name.
    Layer('kernels/training/', ('kernels/training/', 'kernels/solver/', 'kernels/model/', BASE, BACKEND) + PLAIN),
    Layer('kernels/c_api/', ('kernels/c_api/', BASE) + ENGINE_API),
    # The engine: the files directly in kernels/.
    Layer('kernels/*', ('kernels/',), forbidden=BACKENDS),
    Layer('server/observe/', ('server/observe/',) + OF_SERVER, COMMON_LIBRARIES + METRICS_LIBRARIES),
    Layer('server/schedule/', ('server/schedule/', 'server/observe/') + OF_SERVER),
    Layer('server/models/', ('server/models/', 'server/schedule/', 'server/observe/') + OF_SERVER),
    Layer('server/codec/', ('server/codec/', 'server/models/', 'server/schedule/') + PROTO + OF_SERVER,
          COMMON_LIBRARIES + ('google',)),
    Layer('server/rpc/', tuple(f'server/{room}/' for room in
                               ('rpc', 'codec', 'models', 'schedule', 'observe')) + PROTO + OF_SERVER,
          COMMON_LIBRARIES + RPC_LIBRARIES),
    Layer('server/rest/', ('server/rest/', 'server/rpc/', 'server/schedule/', 'server/observe/',
                           'proto/message_json') + PROTO + OF_SERVER,
          COMMON_LIBRARIES + RPC_LIBRARIES + METRICS_LIBRARIES),
    # The program: the files directly in server/.
    Layer('server/*', ('server/',) + PROTO + OF_SERVER,
          COMMON_LIBRARIES + RPC_LIBRARIES + METRICS_LIBRARIES),
    # The one command that computes by itself.
    Layer('proto/', ('proto/',) + PROTO, COMMON_LIBRARIES + RPC_LIBRARIES),
    Layer('client/commands/train', ('client/', 'kernels/training/', BASE),
          COMMON_LIBRARIES + COMMAND_LINE_LIBRARIES),
    Layer('client/', ('client/', 'proto/', BASE) + PROTO,
          COMMON_LIBRARIES + RPC_LIBRARIES + COMMAND_LINE_LIBRARIES),
    Layer('tests/kernels/', ('kernels/', 'tests/kernels/', 'tests/testing/'),
          COMMON_LIBRARIES + TEST_LIBRARIES + ('onnx',)),
    Layer('tests/testing/', ('kernels/', 'tests/testing/'),
          COMMON_LIBRARIES + METRICS_LIBRARIES + TEST_LIBRARIES + ('onnx',)),
    Layer('tests/', ('kernels/', 'proto/', 'server/', 'client/', 'tests/') + PROTO,
          COMMON_LIBRARIES + RPC_LIBRARIES + METRICS_LIBRARIES + TEST_LIBRARIES +
          COMMAND_LINE_LIBRARIES),
)

SOURCE_ENDINGS = ('.h', '.cc', '.cu', '.cuh')
OUR_FOLDERS = ('kernels', 'proto', 'server', 'client', 'tests')
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def includes_of(text):
    """Yields (is_quoted, path) of every include directive."""
    for match in INCLUDE.finditer(text):
        yield match.group(1) == '"', match.group(2)


def expected_guard(name):
    return 'DEEPPCR_' + re.sub(r'[^A-Za-z0-9]', '_', name).upper() + '_'


class Checker:
    """Reads the sources under a root and collects complaints."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts = {}
        for folder in OUR_FOLDERS:
            for path in sorted((self.root / folder).rglob('*')):
                if path.suffix in SOURCE_ENDINGS and path.is_file():
                    name = path.relative_to(self.root).as_posix()
                    self.texts[name] = path.read_text(encoding='utf-8')
        self.complaints = []

    def run(self):
        for name, text in self.texts.items():
            self.check_guard(name, text)
            layer = next((entry for entry in LAYERS if entry.holds(name)), None)
            if layer is None:
                self.complain(name, 'belongs to no layer of the table in include_rules.py')
                continue
            for quoted, path in includes_of(text):
                self.check_include(name, layer, quoted, path)
            if name.endswith(('.cu', '.cuh')):
                self.check_cuda(name)
            elif name.endswith('.cc') and not name.startswith(WITH_TOOLKIT):
                self.check_everywhere(name)
        return self.complaints

    def complain(self, name, message):
        self.complaints.append(f'{name}: {message}')

    def check_guard(self, name, text):
        if not name.endswith(('.h', '.cuh')):
            return
        guard = expected_guard(name)
        if f'#ifndef {guard}\n#define {guard}\n' not in text:
            self.complain(name, f'header guard must be {guard}')

    def check_include(self, name, layer, quoted, path):
        library = path.split('/')[0]
        if path in self.texts or path.startswith(PROTO):
            if not path.startswith(layer.own) or path.startswith(layer.forbidden or ('\0',)):
                self.complain(name, f'{layer.path} may not include "{path}"')
        elif library in CUDA_FORBIDDEN:
            if library not in layer.libraries:
                self.complain(name, f'{layer.path} may not use the library of <{path}>')
        elif quoted and not path.startswith(GENERATED):
            self.complain(name, f'"{path}" is no file of this repository, seen from its root')

    def others_seen_by(self, name):
        """Yields (is_quoted, path, route) of what is not ours among all that a source includes through headers of
        ours."""
        seen, queue = {name}, [(name, name)]
        while queue:
            current, route = queue.pop()
            for quoted, path in includes_of(self.texts[current]):
                if path not in self.texts:
                    yield quoted, path, route
                elif path not in seen:
                    seen.add(path)
                    queue.append((path, f'{route} > {path}'))

    def check_cuda(self, name):
        """nvcc sees neither abseil nor RPC libraries, not even through a header of ours."""
        for _, path, route in self.others_seen_by(name):
            if path.split('/')[0] in CUDA_FORBIDDEN or path.startswith(PROTO):
                self.complain(name, f'nvcc would see <{path}>, by way of {route}')

    def check_everywhere(self, name):
        """What is compiled everywhere sees no headers but those of EVERYWHERE: machines that have others, of a CUDA
        toolkit for instance, perhaps where every compiler looks, would compile what others do not."""
        for quoted, path, route in self.others_seen_by(name):
            of_the_standard = '.' not in path and '/' not in path
            if not quoted and not of_the_standard and path.split('/')[0] not in EVERYWHERE:
                self.complain(name, f'needs <{path}>, which is no header that every build has, by way of {route}')


def main(arguments):
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2]
    checker = Checker(root)
    complaints = checker.run()
    for complaint in complaints:
        print(complaint)
    print(f'include rules: {len(checker.texts)} files, {len(complaints)} complaints')
    if not checker.texts:
        print('include rules: no sources found')
    return 1 if complaints or not checker.texts else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
