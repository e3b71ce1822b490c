#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the CPU benchmarks and writes one result file; called by run.sh, which builds them.

The engine (once per instruction set) and PyTorch run as processes of their own on one core, in
turns: every round of one stands next to a round of the others, and a ratio is formed within a
round. PyTorch runs once with each BLAS that is there, and the faster of all its eager loops is the
baseline. What is reported is the median of the rounds' ratios, and their range.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'deploy/models/digits'))

import cpu_tables  # noqa: E402
import ladder_models  # noqa: E402
import result_file  # noqa: E402

# The folders in which Debian puts each BLAS; LD_LIBRARY_PATH chooses the one that programs use.
BLAS_FOLDERS = [pathlib.Path('/usr/lib/x86_64-linux-gnu') / name
                for name in ('openblas-pthread', 'blas')]
# The longest diffusion call, in seconds, that PyTorch gets with the first BLAS, and with the
# others.
LONGEST_FIRST, LONGEST = 12, 3
MODELS = ('digits-resnet', 'digits-mlp', 'digits-ddpm')  # the wide one is added


class Follower:
    """A process that describes itself and then answers every line with a round."""

    def __init__(self, label, command, environment=None):
        self.label = label
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **(environment or {})})
        self.description = self.read()
        self.rounds = []  # [round][group][candidate][call]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f'{self.label}: ended with status {self.process.wait()}')
        return json.loads(line)

    def run_round(self):
        self.process.stdin.write('round\n')
        self.process.stdin.flush()
        self.rounds.append(self.read())

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def calls(self):
        """(model, samples), candidate, seconds by round."""
        for g, group in enumerate(self.description['groups']):
            for c, candidate in enumerate(group['candidates']):
                yield ((group['model'], group['samples']), group, candidate,
                       [r[g][c] for r in self.rounds])


def processor():
    for line in pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines():
        if line.startswith('model name'):
            return line.split(':', 1)[1].strip()
    return platform.machine()


def commit():
    def git(*arguments):
        return subprocess.run(['git', *arguments], cwd=ROOT, capture_output=True, text=True,
                              check=False)
    head = git('rev-parse', '--short=12', 'HEAD')
    if head.returncode:
        return 'none'
    # Files that this program writes do not make a tree dirty.
    changed = git('status', '--porcelain', '--', '.', ':!tests/bench/results', ':!README.md')
    return head.stdout.strip() + ('-dirty' if changed.stdout.strip() else '')


def run_json(command, **options):
    """Runs a benchmark that prints its table and writes JSON."""
    with tempfile.NamedTemporaryFile(suffix='.json') as file:
        print('\n== ' + pathlib.Path(command[0]).name, flush=True)
        subprocess.run([*command, '--json', file.name], check=True, cwd=ROOT, **options)
        return json.load(open(file.name, encoding='utf-8'))


def rpc_bench(arguments, *flags):
    """Short rounds: what else runs on a shared host changes within seconds, and must hit
    everybody."""
    return run_json([str(arguments.build / 'tests/bench/rpc_bench'), *flags, '--rounds', '31',
                     '--seconds', '0.3', '--server_binary',
                     str(arguments.build / 'server/deeppcr-server')],
                    env={**os.environ, 'LD_LIBRARY_PATH': str(arguments.blas[0] or '')})


def run_rpc(arguments):
    """Both protocols."""
    torch = [] if arguments.no_torch else ['--torch_server',
                                           str(ROOT / 'tests/bench/torch_server.py')]
    return [rpc_bench(arguments, '--protocol', protocol, *others)
            for protocol, others in (('forward', []), ('infer', torch))]


def run_ladder(arguments, folder):
    """All followers after their rounds."""
    wide = ladder_models.write_wide_model(pathlib.Path(folder))
    common = ['--core', str(arguments.core)]
    models = ['--models', ','.join([*MODELS, str(wide)])]
    bench = [str(arguments.build / 'tests/bench/solver_bench'), '--follow',
             '--plan_cache_dir', folder, '--outputs_dir', folder,
             '--seconds', str(arguments.seconds), *common]
    followers = [Follower('solver_bench', bench + models)]
    if followers[0].description['device'] == 'cpu-avx512':
        # The wide model is left out: its time goes into reading its weights.
        followers.append(Follower('solver_bench (AVX2)', bench + ['--models', ','.join(MODELS)],
                                  {'DEEPPCR_CPU_ISA': 'avx2'}))
    if not arguments.no_torch:
        for number, blas in enumerate(arguments.blas):
            followers.append(Follower(f'torch_ladder.py ({blas})', [
                sys.executable, str(ROOT / 'tests/bench/torch_ladder.py'), '--outputs_dir', folder,
                '--longest', str(LONGEST_FIRST if number == 0 else LONGEST),
                '--seconds', str(4 * arguments.seconds), *common, *models],
                {'LD_LIBRARY_PATH': str(blas)} if blas else None))
        devices = [f.description['device'] for f in followers]
        if len(set(devices)) < len(devices):
            sys.exit(f'a BLAS came twice: {", ".join(devices)}; give --blas')
    for number in range(arguments.rounds):
        print(f'round {number + 1} of {arguments.rounds}', file=sys.stderr, flush=True)
        # The first follower changes from round to round, so that a drift of the machine favours
        # nobody.
        turn = number % len(followers)
        for follower in followers[turn:] + followers[:turn]:
            follower.run_round()
    for follower in followers:
        follower.close()
    return followers


def measure(arguments):
    os.chdir(ROOT)
    followers, rows = [], []
    if not arguments.no_ladder:
        with tempfile.TemporaryDirectory() as folder:
            followers = run_ladder(arguments, folder)
    for follower in followers:
        cpu_tables.collect(follower, rows)
    cpu_tables.add_ratios(rows)
    devices = [f.description['device'] for f in followers
               if f.description['device'].startswith('cpu')]
    sweep, rpc, clocks = None, [], None
    if not arguments.no_sweep:
        sweep = run_json([str(arguments.build / 'tests/bench/sweep_bench'),
                          '--core', str(arguments.core)])
    if not arguments.no_rpc and (arguments.build / 'tests/bench/rpc_bench').exists():
        rpc = run_rpc(arguments)
        clocks = rpc_bench(arguments, '--clocks')
    return followers, rows, devices, sweep, rpc, clocks


def used_by_ladder(followers):
    devices = '; '.join(f.description['device'] for f in followers)
    return f', one used by the ladder ({devices})' if followers else ''


def without_rounds(value):
    """The result that is committed: medians and spread, without what each round gave."""
    if isinstance(value, dict):
        return {key: without_rounds(v) for key, v in value.items()
                if key not in ('round_medians', 'throughput_ratios', 'processes')}
    return [without_rounds(v) for v in value] if isinstance(value, list) else value


def write_json(path, result):
    result_file.write(path, result)
    print(f'wrote {os.path.relpath(path, ROOT)}')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build/bench')
    parser.add_argument('--out', type=pathlib.Path, required=True,
                        help='the result file; with every round: BUILD/NAME_rounds.json')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--seconds', type=float, default=0.05, help='per engine rung and round')
    parser.add_argument('--core', type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument('--no_torch', action='store_true')
    parser.add_argument('--blas', type=pathlib.Path, action='append',
                        help='a folder with a libblas.so.3 for PyTorch; may be repeated; default: '
                             "each of Debian's that is there")
    parser.add_argument('--no_ladder', action='store_true')
    parser.add_argument('--no_sweep', action='store_true')
    parser.add_argument('--no_rpc', action='store_true')
    parser.add_argument('--command', default='tests/bench/run.sh', help='as the reader ran it')
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.out = arguments.out.resolve()
    arguments.blas = arguments.blas or [f for f in BLAS_FOLDERS if f.exists()] or [None]

    followers, rows, devices, sweep, rpc, clocks = measure(arguments)
    tables = cpu_tables.tables_of(rows, devices, sweep, rpc, clocks)
    result = {'date': datetime.date.today().isoformat(),
              'machine': f'{processor()}, {os.cpu_count()} cores' + used_by_ladder(followers),
              'commit': commit(), 'command': arguments.command,
              'rounds': arguments.rounds, 'seconds_per_rung_and_round': arguments.seconds,
              'tables': tables, 'rungs': rows, 'sweep': sweep, 'rpc': rpc, 'clocks': clocks,
              'processes': [f.description for f in followers]}
    for table in tables:
        cpu_tables.print_table(table)
    print()
    write_json(arguments.out, without_rounds(result))
    write_json(arguments.build / f'{arguments.out.stem}_rounds.json', result)


if __name__ == '__main__':
    main()
