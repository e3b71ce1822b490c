#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts servers one after another, beside a load generator, and compares what they decide.

usage: same_plans.py --server_binary PATH --client_binary PATH --repository DIR
                     [--models NAME...] [--processes N] [--plan measure|require] [--load N]

Every server is a fresh process without a plan cache. For each model it prints how many of them came
to which plan id, and the spread of the sequential times that they know; with --plan=require also
for how many solvers their answers to one request had one hash. With --plan=measure 19 of 20 ids
must be equal (95 %), with --plan=require all of them, and one hash per solver. Exit status 0 if so.
"""

import argparse
import collections
import hashlib
import json
import math
import multiprocessing
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SAMPLES = 3
LONGEST_START = 300


def burn(seconds_on, seconds_off):
    """One core busy, but for pauses: the clock sees both."""
    while True:
        until = time.monotonic() + seconds_on
        while time.monotonic() < until:
            pass
        time.sleep(seconds_off)


class Server:
    """One server process on ports of its own."""

    def __init__(self, flags, folder):
        self.flags = flags
        port_file = folder / 'ports.json'
        port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [flags.server_binary, f'--model_repository={flags.repository}', f'--plan={flags.plan}',
             '--listen=127.0.0.1:0', '--http_listen=127.0.0.1:0', f'--port_file={port_file}',
             '--shadow_rate=0', '--log_level=error'])
        deadline = time.monotonic() + LONGEST_START
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit('same_plans: the server did not start')
            time.sleep(0.05)
        self.address = f'127.0.0.1:{json.loads(port_file.read_text())["grpc_port"]}'

    def ask(self, *arguments):
        done = subprocess.run([self.flags.client_binary, '--server', self.address, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f'same_plans: deeppcr {" ".join(map(str, arguments))}: '
                             f'{done.stderr.decode()}')
        return done.stdout

    def stop(self):
        self.process.terminate()
        self.process.wait()


def answer_of(server, model, solver, folder):
    """The hash of the answers to one request."""
    out = folder / 'out.npy'
    name = model['summary']['name']
    if model.get('num_inference_steps'):
        classes = ['--class', 'all'] if int(model.get('num_classes', 0)) else []
        server.ask('generate', name, '--num', str(SAMPLES), '--seed', '7', '--solver', solver,
                   '--out', out, *classes)
    else:
        inputs = folder / 'in.csv'
        width = int(model['input_dim'])
        inputs.write_text('\n'.join(','.join(f'{math.sin(i * width + j):.6f}' for j in range(width))
                                    for i in range(SAMPLES)) + '\n')
        server.ask('forward', '--model', name, '--in', inputs, '--solver', solver, '--out', out)
    return hashlib.sha256(out.read_bytes()).hexdigest()[:16]


def copied(flags, repository):
    """The models that are asked for, in a repository of their own."""
    for name in flags.models:
        shutil.copytree(pathlib.Path(flags.repository) / name, repository / name)
    return repository


def plans_of(model):
    return model.get('plans') or [model['plan']]


def visit(flags, folder, seen):
    server = Server(flags, folder)
    try:
        for model in json.loads(server.ask('models', '--json', '-'))['models']:
            record = seen[model['summary']['name']]
            record['ids'][' '.join(plan['id'] for plan in plans_of(model))] += 1
            record['seconds'].append(model['plan']['entries'][0].get('sequential_seconds', 0))
            for solver in model['solvers'] if flags.plan == 'require' else []:
                record['answers'][solver][answer_of(server, model, solver, folder)] += 1
    finally:
        server.stop()


def report(name, record, processes):
    ids = record['ids'].most_common()
    seconds = sorted(record['seconds'])
    one_hash = sum(len(hashes) == 1 for hashes in record['answers'].values())
    print(f'{name}: {ids[0][1]} of {processes} with the same plan id, {len(ids)} different; '
          f'{one_hash} of {len(record["answers"])} solvers with one hash; '
          f'sequential {seconds[0] * 1e6:.1f} to {seconds[-1] * 1e6:.1f} us')
    for plan, count in ids:
        print(f'  {count:3} x {plan}')
    return ids[0][1], one_hash == len(record['answers'])


def passes(flags, record, equal, one_hash):
    if flags.plan == 'measure':
        return equal >= math.floor(0.95 * flags.processes)
    return equal == flags.processes and one_hash and record['answers']


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--server_binary', required=True)
    parser.add_argument('--client_binary', required=True)
    parser.add_argument('--repository', required=True)
    parser.add_argument('--models', nargs='*', default=[])
    parser.add_argument('--processes', type=int, default=20)
    parser.add_argument('--plan', choices=['measure', 'require'], default='measure')
    parser.add_argument('--load', type=int, default=multiprocessing.cpu_count())
    flags = parser.parse_args(arguments)
    load = [multiprocessing.Process(target=burn, args=(0.05 * (i + 1), 0.03), daemon=True)
            for i in range(flags.load)]
    for process in load:
        process.start()
    seen = collections.defaultdict(lambda: {
        'ids': collections.Counter(), 'seconds': [],
        'answers': collections.defaultdict(collections.Counter)})
    with tempfile.TemporaryDirectory() as folder:
        if flags.models:
            flags.repository = copied(flags, pathlib.Path(folder) / 'repository')
        for _ in range(flags.processes):
            visit(flags, pathlib.Path(folder), seen)
    failed = not seen
    for name, record in sorted(seen.items()):
        equal, one_hash = report(name, record, flags.processes)
        failed |= not passes(flags, record, equal, one_hash)
    for process in load:
        process.terminate()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
