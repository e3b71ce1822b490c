#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ours against what users would take instead; called by run.sh --peers.

Every candidate runs as a process of its own (child.py), pinned to one core, one after the other;
the result file is rewritten after each. One that cannot be had, that is wrong or that takes too
long is a row that says so.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / 'deploy/models/digits')]

import cpu_tables  # noqa: E402  pylint: disable=wrong-import-position
import measure_cpu  # noqa: E402  pylint: disable=wrong-import-position
import native  # noqa: E402  pylint: disable=wrong-import-position
import peer_tables  # noqa: E402  pylint: disable=wrong-import-position
import problems  # noqa: E402  pylint: disable=wrong-import-position
import result_file  # noqa: E402  pylint: disable=wrong-import-position

# In the order in which they are measured: the quick ones first. Engine -> title, the packages that
# it imports, candidates. Here, and not in the engines, which only import where their packages are.
ENGINES = {
    'ours': ('DeepPCR Serve', (), ('auto', 'newton')),
    'c_engine': ('C loop', (), ('plain', '-ffast-math', peer_tables.BYTES)),
    'eigen_engine': ('Eigen', (), ('loop over products',)),
    'jax_engine': ('JAX', ('jax',), ('jit lax.scan',)),
    'ort_engine': ('ONNX Runtime', ('onnx', 'onnxruntime'),
                   ('Scan', 'Loop', 'unrolled', 'a session call per step')),
    'openvino_engine': ('OpenVINO', ('onnx', 'openvino'), ('Loop', 'Scan', 'unrolled')),
    'torch_engine': ('PyTorch', ('torch',), ('eager', 'torch.compile')),
}
SAMPLES = (1, 8, 64)


def missing_packages(packages):
    return [name for name in packages if importlib.util.find_spec(name) is None]


def options_of(arguments, engine, candidate, workload, samples):
    return {'engine': engine, 'candidate': candidate, 'workload': workload, 'samples': samples,
            'core': arguments.core, 'seconds': arguments.seconds, 'limit': arguments.limit,
            'scratch': str(arguments.scratch), 'libraries': str(arguments.scratch / 'lib'),
            'expected': str(answer_file(arguments, workload, samples)),
            'library': str(arguments.library) if arguments.library else None}


def answer_file(arguments, workload, samples):
    return arguments.scratch / 'answers' / f'{workload}-{samples}.npy'


class Child:
    """A candidate's process; lines() ends when it does, or at a deadline."""

    def __init__(self, command, log):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log,
                                        start_new_session=True)
        self.buffer = b''

    def line(self, deadline):
        """The next line, '' at its end, None at the deadline."""
        while b'\n' not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        max(0, deadline - time.monotonic()))
            if not ready:
                return None
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            if not read:
                return ''
            self.buffer += read
        line, self.buffer = self.buffer.split(b'\n', 1)
        return line.decode()

    def end(self):
        """Kills it with what it started: compilers."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.stdout.close()
        return self.process.wait()


def late(limit, said):
    """The row of a candidate at a deadline, by what it said last."""
    if said.get('stage') == 'measuring':
        return {'status': 'failed', 'setting': said['setting'],
                'reason': f'not measured within {limit:g} s'}
    row = {'status': 'no answer', 'setting': said.get('setting', ''),
           'reason': f'no answer within {limit:g} s'}
    # Settings that were right before one that takes too long are worth another process.
    return row | ({'most_settings': said['before']} if said.get('right') else {})


def run_child(command, limit, log):
    """The row that it reports, or one that says why there is none."""
    child, said = Child(command, log), {}
    deadline = time.monotonic() + limit
    try:
        while True:
            line = child.line(deadline)
            if line is None:
                return late(limit, said)
            if line == '':
                return {'status': 'failed', 'setting': said.get('setting', ''),
                        'reason': f'ended with status {child.end()}'}
            said = json.loads(line)
            if said['stage'] == 'done':
                return said['row']
            if said['stage'] == 'measuring':
                deadline = time.monotonic() + limit
    finally:
        child.end()


def row_of(arguments, engine, candidate, workload, samples):
    title, packages, _ = ENGINES[engine]
    named = {'workload': workload, 'samples': samples, 'engine': title, 'form': candidate}
    missing = missing_packages(packages)
    if missing:
        return named | {'status': 'not installed', 'reason': f'no package {", ".join(missing)}'}
    options = options_of(arguments, engine, candidate, workload, samples)
    command = [sys.executable, '-B', str(HERE / 'child.py')]
    with open(arguments.scratch / 'children.log', 'ab') as log:
        log.write(f'== {named}\n'.encode())
        log.flush()
        row = run_child([*command, json.dumps(options)], arguments.limit, log)
        if 'most_settings' in row:
            options['most_settings'] = row['most_settings']
            row = run_child([*command, json.dumps(options)], arguments.limit, log)
    return named | row


def prepare(arguments):
    """Compiles the native peers and computes the answers: what failed, by library."""
    (arguments.scratch / 'answers').mkdir(parents=True, exist_ok=True)
    failed = {}
    for name in native.libraries_of(arguments.engines):
        print(f'compiling {name}', file=sys.stderr, flush=True)
        problem = native.compile_library(name, arguments.scratch / 'lib')
        if problem:
            failed[name] = problem
            print(problem, file=sys.stderr)
    if 'c_loop' in failed:
        sys.exit('measure_peers.py: no plain C loop to compare with')
    for workload in arguments.workloads:
        problem = problems.load(workload, arguments.scratch)
        for samples in arguments.samples:
            np.save(answer_file(arguments, workload, samples),
                    problems.answer(problem, *problem.inputs(samples)))
    return failed


def said_of(row):
    if row['status'] != 'measured':
        return row['status'] + (f': {row["reason"]}' if 'reason' in row else '')
    against = ', '.join(f'{row[key]["paired"]:.3g} x {name}' for key, name in
                        (('to_c_loop', 'C loop'), ('to_ours', 'ours'), ('to_bytes', 'bytes'))
                        if key in row)
    return f'{row["min_us"]:.1f} us, {against}, loaded in {row["load_s"]:.1f} s'


def write(arguments, rows):
    result = {'date': datetime.date.today().isoformat(),
              'machine': f'{measure_cpu.processor()}, {os.cpu_count()} cores, one used',
              'commit': measure_cpu.commit(), 'command': arguments.command,
              'seconds_per_candidate': arguments.seconds, 'limit_seconds': arguments.limit,
              'tables': peer_tables.tables_of(rows), 'rows': rows}
    result_file.write(arguments.out, result)


def candidates_of(arguments):
    for workload in arguments.workloads:
        for samples in arguments.samples:
            for engine in arguments.engines:
                for candidate in ENGINES[engine][2]:
                    yield engine, candidate, workload, samples


def measure(arguments):
    failed = prepare(arguments)
    rows, todo = [], list(candidates_of(arguments))
    for number, (engine, candidate, workload, samples) in enumerate(todo):
        row = row_of(arguments, engine, candidate, workload, samples)
        if candidate == peer_tables.BYTES and row['status'] == 'not tried':
            continue  # no peer, and said of one sample only
        if engine == 'eigen_engine' and 'eigen_loop' in failed:
            row['reason'] = failed['eigen_loop']
        rows.append(row)
        print(f'[{number + 1}/{len(todo)}] {workload}, {samples} samples, {row["engine"]}, '
              f'{candidate}: {said_of(row)}', file=sys.stderr, flush=True)
        write(arguments, rows)
    return rows


def words(text):
    return text.split(',')


def parsed(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', type=pathlib.Path, help='libdeeppcr.so')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--scratch', type=pathlib.Path, required=True,
                        help='folder for libraries, plans, answers and the log of the processes')
    parser.add_argument('--workloads', type=words, default=list(problems.WORKLOADS))
    parser.add_argument('--samples', type=lambda t: [int(n) for n in words(t)],
                        default=list(SAMPLES))
    parser.add_argument('--engines', type=words, default=list(ENGINES))
    parser.add_argument('--seconds', type=float, default=3, help='of turns per candidate')
    parser.add_argument('--limit', type=float, default=180,
                        help='seconds that a candidate may take until it answers')
    parser.add_argument('--core', type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument('--command', default='tests/bench/run.sh --peers')
    arguments = parser.parse_args(argv)
    for chosen, known in ((arguments.workloads, problems.WORKLOADS),
                          (arguments.engines, ENGINES)):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            parser.error(f'unknown: {", ".join(unknown)}; there are {", ".join(known)}')
    return arguments


def main():
    arguments = parsed()
    for name in ('out', 'scratch', 'library'):
        if getattr(arguments, name):
            setattr(arguments, name, getattr(arguments, name).resolve())
    # Ends the candidate that runs, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for table in peer_tables.tables_of(measure(arguments)):
        cpu_tables.print_table(table)
    print(f'wrote {os.path.relpath(arguments.out, problems.ROOT)}')


if __name__ == '__main__':
    main()
