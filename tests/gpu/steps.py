# SPDX-License-Identifier: Apache-2.0
"""What is run on a GPU, in which order, and for how long: the steps of run_gpu.py."""

import glob
import os
import pathlib
import shutil
import site
import subprocess
import sys
import sysconfig

from runner import Step

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHOLE = 530  # seconds, of the whole

# Parts, those of a line side by side, and the seconds that are kept for a line while earlier ones
# run. Tests and sanitizers do not mind one another; whatever is timed has the GPU for itself. First
# what is cheap and says most; last what is worth the time that is left.
STAGES = (
    (('environment',), 15),
    (('build',), 0),  # without a bundle nothing that is long can run
    (('micro',), 20),
    (('check',), 50),
    (('kernels',), 50),
    (('ncu',), 45),
    (('tests', 'sanitizer'), 130),
    (('ladder',), 115),
    (('sweep',), 60),
    (('service',), 45),
    (('shapes',), 0),
)
PARTS = tuple(part for parts, _ in STAGES for part in parts)
FAMILIES = ('dense', 'sequential', 'newton', 'backward')
WORKLOADS = ('sequential', 'W1', 'W2', 'W3', 'W4', 'W5', 'W6')
TOOLS = ('memcheck', 'synccheck')
NO_SANITIZER = r'(?i)device not supported|unable to initialize|no gpu'
NO_COUNTERS = r'ERR_NVGPUCTRPERM|(?i:profiling is not supported|failed to initialize the profiler)'
NOTHING_PROFILED = r'(?i)no kernels were profiled'
NO_PROGRAM = 'none that runs here: deploy/bundle.sh --with_tests'
# (kernel, program with arguments) that are looked at closely.
PROFILED = (
    ('SequentialKernel', ('kernel_trial', 'once', 'sequential')),
    ('NewtonKernel', ('kernel_trial', 'once', 'W1')),
    ('HeldSequentialKernel', ('kernel_trial', 'once', 'W4')),
    ('PropagationKernel', ('kernel_trial', 'once', 'W4')),
    ('TangentKernel', ('cuda_on_gpu_test', '--gtest_filter=*NewtonOfWideDenoisersAgrees*')),
)


def packages():
    """Folders in which Python looks for packages, as far as they are known without importing any."""
    return {sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), *site.getsitepackages(),
            site.getusersitepackages(), *(p for p in sys.path if p.endswith('-packages'))}


def library_folders(nvcc, sites):
    """Where cuBLAS and NVRTC may lie: beside the compiler, or in the wheels that PyTorch brings."""
    beside = [str(pathlib.Path(nvcc).resolve().parents[1] / 'lib64')] if nvcc else []
    folders = []
    for folder in sorted(filter(None, sites)):
        for pattern in ('nvidia/cu*/lib', 'nvidia/cublas/lib', 'nvidia/*/lib'):
            folders += sorted(glob.glob(f'{folder}/{pattern}'))
    return beside + [f for f in dict.fromkeys(folders)
                     if glob.glob(f'{f}/libcublas*.so*') or glob.glob(f'{f}/libnvrtc*.so*')]


def environment(nvcc):
    """The variables of all steps."""
    path = os.environ.get('LD_LIBRARY_PATH')
    return {**os.environ, 'PYTHONUNBUFFERED': '1', 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
            'LD_LIBRARY_PATH': os.pathsep.join(([path] if path else []) + library_folders(nvcc, packages()))}


def tool(name, nvcc):
    """Path of a tool of the toolkit, which may lie beside its compiler alone, or ''."""
    beside = str(pathlib.Path(nvcc).resolve().parent) if nvcc else ''
    deeper = sorted(glob.glob(f'{beside}/../nsight-compute*') if beside else [])
    deeper += sorted(glob.glob('/opt/nvidia/nsight-compute/*'), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get('PATH', ''), beside, *deeper])) or ''


class Programs:
    """The programs of a bundle."""

    def __init__(self, bundle, variables):
        self.folder, self.variables = bundle / 'bin', variables

    def path(self, name):
        return str(self.folder / name)

    def run_here(self, name):
        path = self.folder / name
        if not (path.is_file() and os.access(path, os.X_OK)):
            return False
        found = subprocess.run(['ldd', path], capture_output=True, text=True, check=False,
                               env=self.variables)
        return 'not found' not in found.stdout + found.stderr


def first_line(*command, seconds=20):
    """What a command says first, or '': also where it never ends, and does not even die."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    except OSError:
        return ''
    try:
        lines = process.communicate(timeout=seconds)[0].strip().splitlines()
    except subprocess.TimeoutExpired:
        process.kill()
        return ''
    return lines[0] if lines and process.returncode == 0 else ''


def queried(what):
    return first_line('nvidia-smi', f'--query-gpu={what}', '--format=csv,noheader')


def architecture():
    """Compute capability of the GPU, as nvcc writes it."""
    digits = queried('compute_cap').replace('.', '')
    return digits if digits.isdigit() else '90'


def build_steps(programs, nvcc, built, limits):
    """Builds what a bundle lacks and the toolkit alone can make; `built` gets their names."""
    sources = {'micro_trial': ['tests/gpu/micro_trial.cu'],
               'kernel_trial': ['tests/gpu/kernel_trial.cc',
                                *sorted(map(str, pathlib.Path('kernels/cuda').glob('*/*.cu')))]}
    for name, files in sources.items():
        if programs.run_here(name):
            continue
        built[name] = f'build {name}'
        command = (sys.executable, '-B', '-u', 'tests/gpu/build_program.py', '--nvcc', nvcc,
                   '--architecture', architecture(), '--output', programs.path(name), *files)
        missing = '' if nvcc else 'no nvcc: nothing to build with'
        try:
            programs.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            missing = f'nowhere to build: {error}'
        yield Step(f'build {name}', 'build', command, limits.get(f'build {name}', 240 if len(files) > 1 else 60),
                   missing=missing)


class Plan:
    """Steps of the parts that are wanted, for one machine."""

    def __init__(self, arguments, gpu, variables):
        self.out, self.bundle, self.nvcc, self.gpu = arguments.out, arguments.bundle, arguments.nvcc, gpu
        self.limits = dict(arguments.limit)
        self.programs = Programs(self.bundle, variables)
        self.runs = {}
        self.built = {}

    def stages(self, wanted):
        """(lanes by stage, budgets)."""
        builds = list(build_steps(self.programs, self.nvcc, self.built, self.limits))
        makers = {part: getattr(self, part) for part in PARTS if part != 'build'}
        lanes = [[builds if part == 'build' else list(makers[part]()) for part in parts
                  if part == 'build' or part in wanted] for parts, _ in STAGES]
        return lanes, [budget for _, budget in STAGES]

    def step(self, name, part, program, *arguments, before=(), limit, **fields):
        """A step that runs a program of the bundle."""
        if program not in self.runs:
            self.runs[program] = self.programs.run_here(program)
        if program in self.built:
            fields.setdefault('needs', self.built[program])
        elif not self.runs[program]:
            fields.setdefault('missing', NO_PROGRAM)
        fields.setdefault('fails', bool(self.gpu))
        return Step(name, part, (*before, self.programs.path(program), *arguments),
                    self.limits.get(name, limit), **fields)

    def timed(self, name, part, program, *arguments, **fields):
        """A step that is nothing without a GPU."""
        if not self.gpu:
            fields.update(missing='no GPU', fails=False)
        return self.step(name, part, program, *arguments, **fields)

    def measured(self, part, program, limit):
        """A step of measure_gpu.py, which needs `program`."""
        step = self.timed(part, part, program, limit=limit)
        return Step(part, part, (sys.executable, '-B', '-u', 'tests/gpu/measure_gpu.py', part, '--bundle',
                                 self.bundle, '--out', self.out, '--seconds', str(step.limit)),
                    step.limit, missing=step.missing, fails=step.fails, least=20)

    # ---- Parts
    def environment(self):
        yield Step('environment', 'environment', (sys.executable, '-B', '-u', 'tests/gpu/environment.py',
                                                  '--nvcc', self.nvcc, '--bundle', self.bundle),
                   self.limits.get('environment', 15), fails=bool(self.gpu))

    def micro(self):
        yield self.timed('device', 'micro', 'kernel_trial', 'device', limit=15)
        yield self.timed('micro-benchmarks', 'micro', 'micro_trial', limit=20, rows='micro')

    def check(self):
        for family in FAMILIES:
            yield self.step(f'check {family}', 'check', 'kernel_trial', 'check', 'small', family, limit=20)

    def kernels(self):
        for workload in WORKLOADS:
            yield self.timed(f'time {workload}', 'kernels', 'kernel_trial', 'time', workload, limit=20,
                             rows='kernels')

    def ncu(self):
        ncu = tool('ncu', self.nvcc)
        for kernel, (program, *arguments) in PROFILED:
            fields = {} if ncu else {'missing': 'no ncu on PATH or beside nvcc', 'fails': False}
            yield self.timed(f'ncu {kernel}', 'ncu', program, *arguments, limit=25, log='ncu.txt',
                             before=(ncu, '--set', 'full', '--clock-control', 'none', '--kernel-name-base',
                                     'function', '-k', kernel, '-c', '1', '--page', 'details'),
                             skips_on=NO_COUNTERS, fails_on=NOTHING_PROFILED, **fields)

    def tests(self):
        yield self.step('cuda_on_gpu_test', 'tests', 'cuda_on_gpu_test', limit=90, tests=True)
        # The reference and the CPU have no need of a GPU to agree.
        yield self.step('cuda_conformance_on_gpu_test', 'tests', 'cuda_conformance_on_gpu_test',
                        '--gtest_filter=*cuda*', limit=90, tests=True)
        yield self.step('compiled programs', 'tests', 'cuda_conformance_on_gpu_test',
                        '--gtest_filter=CompiledOnDevice*', limit=90, tests=True)
        yield self.step('kernels against loops', 'tests', 'kernel_trial', 'check', limit=90)

    def sanitizer(self):
        program = tool('compute-sanitizer', self.nvcc)
        fields = {'log': 'sanitizer.log'}
        if not program:
            fields.update(missing='no compute-sanitizer on PATH or beside nvcc', fails=False)
        before = (program, '--error-exitcode', '1', '--target-processes', 'all', '--tool')
        # If a virtual machine hides what the tool needs, the tool says so and checks nothing.
        first = 'sanitizer starts'
        yield self.step(first, 'sanitizer', 'kernel_trial', 'check', 'tiny', before=(*before, 'memcheck'),
                        limit=30, skips_on=NO_SANITIZER, **fields)
        for name, trial in (
                ('kernels', ('kernel_trial', 'check', 'small')),
                ('diffusion', ('cuda_conformance_on_gpu_test', '--gtest_filter=*GivenNoise*cuda*')),
                ('wide denoisers', ('cuda_on_gpu_test', '--gtest_filter=*WideDenoisers*'))):
            for each in TOOLS:
                yield self.step(f'{each} {name}', 'sanitizer', *trial, before=(*before, each), limit=40,
                                needs=first, **fields)
        # Fewer cases, as the tool follows every access to shared memory.
        for name, trial in (
                ('kernels', ('kernel_trial', 'check', '33', '13')),
                ('diffusion', ('cuda_conformance_on_gpu_test', '--gtest_filter=*GivenNoise*cuda_residual:*GivenNoise*cuda_passes_residual')),
                ('wide denoisers', ('cuda_on_gpu_test', '--gtest_filter=*WideDenoisers*/adaln_a_few'))):
            yield self.step(f'racecheck {name}', 'sanitizer', *trial, before=(*before, 'racecheck'), limit=60,
                            needs=first, **fields)

    def ladder(self):
        yield self.measured('ladder', 'solver_bench', 115)

    def sweep(self):
        yield self.measured('sweep', 'sweep_bench', 60)

    def service(self):
        yield self.measured('service', 'deeppcr-server', 45)

    def shapes(self):
        yield self.timed('time all shapes', 'shapes', 'kernel_trial', 'time', 'shapes', limit=100,
                         rows='kernels', least=20, optional=True)
