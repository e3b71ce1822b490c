#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures one part of what needs the bundle's larger programs; a step of run_gpu.py.

usage: measure_gpu.py ladder|sweep|service --bundle DIR --out DIR --seconds SECONDS

Prints rows of JSON, each of which replaces the one before it: what was measured so far, as often as
there is something new. Ends with status 1 where an answer was wrong, after all figures.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('tests/bench', 'deploy/models/digits')]

import cpu_tables as shared  # noqa: E402  pylint: disable=wrong-import-position
import ladder_models  # noqa: E402  pylint: disable=wrong-import-position
import measure_cpu  # noqa: E402  pylint: disable=wrong-import-position

MODELS = 'digits-resnet,digits-mlp,digits-ddpm'
ROUNDS = 7


def tell(**row):
    print(json.dumps(row), flush=True)


def say(text):
    print(text, flush=True)


# ---- The ladder
def ladder_followers(arguments, folder):
    wide = ladder_models.write_wide_model(pathlib.Path(folder))
    common = ['--models', f'{MODELS},{wide}', '--samples', arguments.samples, '--drawn_samples',
              arguments.drawn_samples, '--outputs_dir', folder]
    inputs = str(arguments.inputs)
    say('running solver_bench: loading')
    yield measure_cpu.Follower('solver_bench', [
        str(arguments.bundle / 'bin/solver_bench'), '--backend', 'cuda', '--keep_going',
        '--follow', '--seconds', '0.05', '--in', inputs, *common])
    say('running frameworks.py: loading')
    try:
        yield measure_cpu.Follower('frameworks.py', [
            sys.executable, str(ROOT / 'tests/gpu/frameworks.py'), '--seconds', '0.1', '--inputs',
            inputs, *common])
    except SystemExit as error:  # the rungs of the engine are worth having without frameworks
        say(f'left out: {error}')


def add_speedups(rows):
    """Against our sequential solver, within each round."""
    for row in rows:
        base = next((r for r in rows if (r['model'], r['samples'], r['name']) ==
                     (row['model'], row['samples'], 'sequential')), None)
        ratios = shared.ratios_of(base, row) if base else []
        if not ratios:
            continue
        row['speedup'] = statistics.median(ratios)
        row['speedup_range'] = [min(ratios), max(ratios)]


def rows_of(followers):
    rows = []
    for follower in followers:
        if follower.rounds:  # one that was lost keeps those that it had
            shared.collect(follower, rows)
    add_speedups(rows)
    return rows


def measure_ladder(arguments):
    """A failure if an answer was wrong; it is reported beside the figures of the others."""
    followers, missing = [], []
    with tempfile.TemporaryDirectory() as folder:
        for follower in ladder_followers(arguments, folder):
            followers.append(follower)
            missing += [{'model': g['model'], 'samples': g['samples'], **g['missing']}
                        for g in follower.description['groups'] if g['missing']]
            # A round of the engine alone, in case nothing else comes that far.
            say(f'running {follower.label}: round 1')
            follower.run_round()
            tell(ladder=rows_of(followers), missing=missing)
        running, lost = list(followers), []
        for number in range(1, ROUNDS):
            if arguments.left() < arguments.seconds / 2:
                break
            turn = number % len(running)
            for follower in running[turn:] + running[:turn]:
                say(f'running {follower.label}: round {number + 1}')
                try:
                    follower.run_round()
                except (SystemExit, OSError) as error:
                    lost.append(f'{follower.label}: {error}')
                    running.remove(follower)
            tell(ladder=rows_of(followers))
            if not running:
                break
        for follower in running:
            follower.close()
    if lost:
        raise RuntimeError('; '.join(lost)[:500])
    wrong = [f"{g['model']} {name}: {why}" for g in missing for name, why in g.items()
             if str(why).startswith('wrong: ')]
    if wrong:
        raise RuntimeError('; '.join(wrong)[:500])


# ---- The sweep
def measure_sweep(arguments):
    """The sweep goes on behind a wrong answer, and says so by its status."""
    sweep = {'rows': [], 'left_out': []}
    with subprocess.Popen([arguments.bundle / 'bin/sweep_bench', '--backend', 'cuda', '--samples',
                           '1,8,64,256', '--seconds', '0.02', '--max_seconds',
                           str(int(0.75 * arguments.seconds)), '--json_lines'],
                          stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if not line.startswith('{'):
                say(line.rstrip())
                continue
            row = json.loads(line)
            sweep['left_out' if row.get('left_out') else 'rows'].append(row)
            tell(sweep=sweep)
    if process.returncode != 0:
        raise RuntimeError(f'sweep_bench ended with status {process.returncode}')


# ---- The service
class Server:
    """The bundle's server on the GPU with the demo models that it can take."""

    def __init__(self, bundle, folder, out):
        self.log = open(out / 'server.log', 'w', encoding='utf-8')
        self.ports = pathlib.Path(folder) / 'ports'
        self.process = subprocess.Popen(
            [bundle / 'bin/deeppcr-server', '--backend', 'cuda', '--model_repository',
             str(bundle / 'models'), '--listen', '127.0.0.1:0', '--http_listen', '127.0.0.1:0',
             '--port_file', str(self.ports)], stdout=self.log, stderr=subprocess.STDOUT)

    def await_ports(self):
        for _ in range(600):
            if self.ports.exists():
                return json.loads(self.ports.read_text(encoding='utf-8'))
            if self.process.poll() is not None:
                raise RuntimeError(f'the server ended with status {self.process.returncode}')
            time.sleep(0.1)
        raise RuntimeError('the server is not up after 60 s')

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def measure_service(arguments):
    with tempfile.TemporaryDirectory() as folder, \
            Server(arguments.bundle, folder, arguments.out) as server:
        say('running deeppcr-server: start')
        ports = server.await_ports()
        inputs = ['--in', str(arguments.inputs)]

        def deeppcr(command, *flags):
            say(f'running deeppcr {command} {" ".join(flags)}')
            return subprocess.run(
                [arguments.bundle / 'bin/deeppcr', command, 'digits-resnet', '--server',
                 f"127.0.0.1:{ports['grpc_port']}", *inputs, *flags],
                check=True, timeout=40, capture_output=True, text=True).stdout
        labels = {solver: deeppcr('forward', '--labels', '--solver', solver)
                  for solver in ('sequential', 'newton', 'auto')}
        if len(set(labels.values())) > 1:
            raise RuntimeError('the solvers disagree about the labels')
        bench = deeppcr('bench', '--seconds', '5').splitlines()
        tell(service={'exit_status': None, 'bench': bench})
        url = f"http://127.0.0.1:{ports['http_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as reply:
            (arguments.out / 'metrics.txt').write_bytes(reply.read())
        status = server.stop()
        tell(service={'exit_status': status, 'bench': bench})
        if status != 0:
            raise RuntimeError(f'the server ended with status {status}')


PARTS = {'ladder': measure_ladder, 'sweep': measure_sweep, 'service': measure_service}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', choices=list(PARTS))
    parser.add_argument('--bundle', type=pathlib.Path, required=True)
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--seconds', type=float, required=True, help='after which this is ended')
    parser.add_argument('--samples', default='1,8,64')
    parser.add_argument('--drawn_samples', default='1,64', help='of diffusion models')
    parser.add_argument('--inputs', type=pathlib.Path,
                        default=ROOT / 'deploy/models/data/digits_heldout.npy')
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.seconds
    arguments.left = lambda: ends - time.monotonic()
    try:
        PARTS[arguments.part](arguments)
    except (RuntimeError, OSError, ValueError, SystemExit, subprocess.SubprocessError) as error:
        say(f'FAILED: {type(error).__name__}: {error}'[:500])
        sys.exit(1)


if __name__ == '__main__':
    main()
