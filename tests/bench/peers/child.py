# SPDX-License-Identifier: Apache-2.0
"""One candidate on one workload and batch: started by measure_peers.py, speaks protocol.py.

usage: child.py '{"engine": ..., "candidate": ..., "workload": ..., "samples": ..., ...}'
"""

import importlib
import json
import os
import pathlib
import sys
import types

# Before anything starts a thread: those of every library then share the core.
OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
if OPTIONS:
    os.sched_setaffinity(0, {OPTIONS['core']})
    for variable in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
        os.environ[variable] = '1'

import numpy as np  # noqa: E402  pylint: disable=wrong-import-position

import problems  # noqa: E402  pylint: disable=wrong-import-position
import protocol  # noqa: E402  pylint: disable=wrong-import-position
from calls import NotOffered  # noqa: E402  pylint: disable=wrong-import-position

OURS, BYTES = ('ours', 'auto'), ('c_engine', 'reads the weights only')


def say(line):
    print(json.dumps(line), file=CHANNEL, flush=True)


def context_of(options):
    library = options.get('library')
    return types.SimpleNamespace(scratch=pathlib.Path(options['scratch']),
                                 libraries=pathlib.Path(options['libraries']),
                                 library=pathlib.Path(library) if library else None)


def others_of(options, context, problem, x, noise):
    """The calls that take turns with the candidate: the C loop, ours, and, for ours, the bytes."""
    native = importlib.import_module('native')
    who = (options['engine'], options['candidate'])
    others = {'c_loop': native.c_loop(context.libraries, problem, x, noise)}
    if who != OURS:
        try:
            others['ours'] = importlib.import_module('ours').yardstick(context, problem, x, noise)
        except NotOffered:
            pass  # its own row says so
    elif problem.kind == 'diffusion' and len(x) == 1:
        others['bytes'] = native.weight_bytes(context.libraries, problem, x)
    return others


def expected_of(options, problem):
    """What measure_peers.py computed in float64; of the loop that only reads, what it has to sum."""
    if (options['engine'], options['candidate']) == BYTES:
        return importlib.import_module('native').words_of(problem)
    return np.load(options['expected'])


def run(options):
    try:
        engine = importlib.import_module(options['engine'])
    except ImportError as error:
        return {'status': 'not installed', 'reason': protocol.short(error)}
    context = context_of(options)
    problem = problems.load(options['workload'], context.scratch)
    x, noise = problem.inputs(options['samples'])
    try:
        settings = engine.settings(options['candidate'], context, problem, x, noise)
        settings = settings[:options.get('most_settings')]
        version = engine.version(context)
    except NotOffered as reason:
        status = 'not installed' if 'not built' in str(reason) else 'not tried'
        return {'status': status, 'reason': str(reason)}
    row = protocol.row_of(settings, expected_of(options, problem),
                          others_of(options, context, problem, x, noise), options, say)
    return row | {'version': version}


if __name__ == '__main__':
    # Frameworks print to standard output: what is said goes to a copy of it.
    CHANNEL = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    say({'stage': 'done', 'row': run(OPTIONS)})
    CHANNEL.close()
    # Some frameworks hang or crash as they end.
    os._exit(0)
