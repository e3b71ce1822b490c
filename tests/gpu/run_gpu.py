#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of steps.py on a GPU and collects what they find; called by run.sh, which says how.

Needs Python's own library alone. Run again with other parts, it adds to the results.
"""

import argparse
import datetime
import glob
import json
import pathlib
import signal
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('tests/gpu', 'deploy')]

import gpu_tables  # noqa: E402
import readme_tables  # noqa: E402
import runner  # noqa: E402
import steps  # noqa: E402


def machine():
    """(name of the GPU, its driver); no name if there is none."""
    name, _, driver = steps.queried('name,driver_version').partition(', ')
    if not name and glob.glob('/dev/nvidia[0-9]*'):
        return 'a GPU that nvidia-smi does not name', ''
    return name, driver


def commit(bundle):
    file = bundle / 'COMMIT'
    if file.exists():
        return file.read_text(encoding='utf-8').strip()
    return steps.first_line('git', '-C', str(ROOT), 'rev-parse', '--short=12', 'HEAD') or 'unknown'


def cuda_key(bundle):
    """(hash of the CUDA sources, major.minor of nvcc) that the bundle's programs are of; what was
    built here is not told apart by either, and switches nothing on."""
    try:
        sources, nvcc = (bundle / 'CUDA_KEY').read_text(encoding='utf-8').split()
    except (OSError, ValueError):
        return '', ''
    return sources, nvcc


def tests_passed(results):
    """Whether the tests have run, and all of them passed: kernels/cuda_evidence.cmake asks."""
    of_tests = [r['status'] for r in results['steps'] if r['part'] in ('check', 'tests')]
    return results['machine'] != 'no GPU' and {'check', 'tests'} <= {r['part'] for r in results['steps']} \
        and all(status == 'ok' for status in of_tests)


def earlier(path):
    """The results that are there already."""
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
        return found if isinstance(found.get('steps'), list) else {}
    except (OSError, ValueError, AttributeError):
        return {}


def without(results, planned):
    """Leaves out what the steps that are planned will find anew."""
    names = {step.name for step in planned}
    results['steps'] = [r for r in results['steps']
                        if r['name'].partition(', behind ')[0] not in names]
    for step in planned:
        if step.rows:
            results[step.rows] = [row for row in results.get(step.rows, []) if row.get('step') != step.name]
        elif step.part in ('ladder', 'sweep', 'service'):
            results.pop(step.part, None)


class Files:
    """Puts results into files, as often as it is asked to."""

    def __init__(self, out, started):
        self.out, self.started = out, started

    def write(self, results):
        """Tables that cannot be made take nothing from what was measured."""
        results['failed'] = {r['name']: f'{r["status"]}: {r["why"]}' for r in runner.failures(results)
                             if r['status'] != 'running'}
        results['tests_passed'] = tests_passed(results)
        try:
            results['tables'] = gpu_tables.tables_of(results)
        except Exception:  # pylint: disable=broad-except  # rows of a program that ended in their midst
            results['failed']['tables'] = traceback.format_exc()[-400:]
        runner.replace_file(self.out / 'results.json', self.without_paths(json.dumps(results, indent=1) + '\n'))
        runner.replace_file(self.out / 'results.md', self.markdown(results))
        runner.replace_file(self.out / 'summary.txt', self.summary(results))

    def without_paths(self, text):
        """Results are committed; where a machine has its files is nobody's business."""
        return text.replace(str(self.out), 'OUT').replace(f'{ROOT}/', '')

    def summary(self, results):
        bad = runner.failures(results)
        ran = sum(r['status'] == 'ok' for r in results['steps'])
        lines = [f'GPU: {results["machine"]}', f'commit: {results["commit"]}',
                 *runner.summary_lines(results),
                 f'{time.monotonic() - self.started:.0f} s, {ran} steps passed, {len(bad)} failed'
                 + (': ' + ', '.join(r['name'] for r in bad) if bad else '')]
        return '\n'.join(lines) + '\n'

    @staticmethod
    def markdown(results):
        lines = [f"# {results['machine']}, {results['date']}, commit {results['commit']}\n"]
        for table in results.get('tables', []):
            lines.append(f"\n## {table['name']}\n\n{table['note']}\n")
            lines += readme_tables.markdown_rows(table)
        lines += [f'\nFAILED: {name}: {why}' for name, why in results['failed'].items()]
        return '\n'.join(lines) + '\n'


def named_limit(text):
    name, _, seconds = text.rpartition('=')
    try:
        return name, float(seconds)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text}: not STEP=SECONDS') from error


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--bundle', type=pathlib.Path, required=True)
    parser.add_argument('--nvcc', default='')
    parser.add_argument('--only', action='append', choices=steps.PARTS)
    parser.add_argument('--whole', type=float, default=steps.WHOLE)
    parser.add_argument('--limit', type=named_limit, action='append', default=[])
    return parser.parse_args()


def exit_status(results, planned, gpu, stopped):
    names = {step.name for step in planned}
    mine = [r for r in results['steps'] if r['name'].partition(', behind ')[0] in names]
    bad = [r for r in mine if r['status'] not in runner.GOOD]
    if stopped:
        return 128 + signal.Signals[stopped].value
    if bad:
        return 1
    if not gpu:
        runner.say('no GPU here: nothing was launched')
        return 77
    return 0 if any(r['status'] == 'ok' for r in mine) else 1


def main():
    started = time.monotonic()
    arguments = read_arguments()
    gpu, driver = machine()
    variables = steps.environment(arguments.nvcc)
    stages, budgets = steps.Plan(arguments, gpu, variables).stages(arguments.only or steps.PARTS)
    planned = [step for lanes in stages for lane in lanes for step in lane]
    unknown = {name for name, _ in arguments.limit} - {step.name for step in planned}
    if unknown:
        sys.exit(f'--limit: no step {", ".join(sorted(unknown))}')
    for log in {step.log for step in planned}:
        (arguments.out / log).write_bytes(b'')
    sources, nvcc = cuda_key(arguments.bundle)
    found = earlier(arguments.out / 'results.json')
    # What other programs or another GPU found is nothing to add to.
    if [found.get(key) for key in ('cuda_sources', 'nvcc', 'machine')] != [sources, nvcc, gpu or 'no GPU']:
        found = {}
    results = {'steps': [], **found}
    without(results, planned)
    results.update(cuda_sources=sources, nvcc=nvcc, date=datetime.date.today().isoformat(), machine=gpu or 'no GPU', driver=driver,
                   commit=commit(arguments.bundle), command=' '.join(sys.argv[1:]))
    runner.say(f'GPU: {results["machine"]}\nbundle: {arguments.bundle}, commit {results["commit"]}')

    scale = min(1, arguments.whole / steps.WHOLE)
    files = Files(arguments.out, started)
    run = runner.Runner(arguments.out, results, stages, [scale * budget for budget in budgets],
                        arguments.whole, files.write, variables)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, run.stop)
    run.run()
    files.write(results)
    runner.say('\n' + files.summary(results))
    sys.exit(exit_status(results, planned, gpu, run.stopped))


if __name__ == '__main__':
    main()
