#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole of run.sh without a GPU: what is found survives a hang, a crash, a time-out and a signal.

usage: run_gpu_test.py KERNEL_TRIAL_ON_SIMT|none [unittest arguments]

nvidia-smi, the profiler, the sanitizer and the programs of the bundle are scripts; kernel_trial runs
on the SIMT executor where a test is about it. The environment plants mishaps: MISHAP is what happens,
MISHAP_AT the program and its arguments.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import gpu_tables  # noqa: E402  pylint: disable=wrong-import-position
import runner  # noqa: E402  pylint: disable=wrong-import-position
import steps  # noqa: E402  pylint: disable=wrong-import-position

TRIAL = ''
PROGRAM = r'''#!/bin/sh
mishap() {
  [ "$(basename "$0") $*" = "$MISHAP_AT" ] || return 0
  case "$MISHAP" in
    hang) trap '' TERM; sleep 600 & echo "$! $$" >"$PIDS"; while :; do sleep 600; done ;;
    crash) kill -SEGV $$ ;;
    slow) i=0; while :; do i=$((i + 1)); row "slow$i"; sleep 0.1; done ;;
    error) echo "FAILED: L=5 D=3 C=8: newton launch: an illegal memory access"; exit 1 ;;
  esac
}
'''
KERNEL_TRIAL = r'''
row() {
  echo "{\"kernel\": \"$1\", \"workload\": \"$workload\", \"num_layers\": 1024, \"state_dim\": 16," \
    "\"samples\": 1, \"activation\": \"relu\", \"guess\": \"affine\", \"shooting_interval\": 16," \
    "\"blocks\": 16, \"warps\": 4, \"iterations\": 4, \"corrections\": 1, \"converged\": true," \
    "\"median_us\": 20.5, \"min_us\": 20.0}"
}
workload="$2"
# The executor would take minutes for a median, for deep networks, and for what another test checks.
case "$*" in
  "check small newton" | "check small" | check | once* | "time W2" | "time shapes") ;;
  time*) [ -z "$SIMT" ] || exec "$SIMT" once "$2" ;;
  *) [ -z "$SIMT" ] || exec "$SIMT" "$@" ;;
esac
case "$1" in
  device) echo '{"occupancy": {"largest_cluster": 16}}' ;;
  check) echo "case L=5 D=3 C=8"; mishap "$@"; echo "3 checks, 0 failed" ;;
  *) echo "case first"; row sequential; echo "case second"; mishap "$@"; row newton ;;
esac
'''
MICRO_TRIAL = r'''
row() { echo "{\"name\": \"$1\", \"what\": \"LDS\", \"unit\": \"cycles\", \"value\": 31}"; }
row shared; echo "case other"; mishap "$@"; row other
'''
GTEST = r'''
for test in A.First A.Second A.Third; do
  case "$*" in *$test*) continue ;; esac
  echo "[ RUN      ] $test"
  [ "$test $(basename "$0")" != "$MISHAP_AT" ] || { MISHAP_AT="$(basename "$0") $*"; mishap "$@"; }
  echo "[       OK ] $test (0 ms)"
done
'''
SWEEP = r'''
row() {
  echo "{\"activation\": \"relu\", \"num_layers\": 64, \"state_dim\": 2, \"samples\": 1," \
    "\"sequential_seconds\": 1e-5, \"sequential_stages\": 64, \"newton_converged\": false," \
    "\"auto_solver\": \"$1\", \"auto_seconds\": 1e-5, \"auto_over_best\": 1.0}"
}
row first; mishap "$(basename "$0")"; row second
'''
CLIENT = 'echo 7\n'
# Answers of solver_bench to measure_gpu.py: what it is, and a round for each line.
SOLVER_BENCH = r'''
echo '{"device": "cuda-fake", "groups": [{"model": "digits-resnet", "samples": 1, "num_layers": 1024,' \
  '"missing": {}, "candidates": [{"name": "sequential"}, {"name": "auto"}]}]}'
while read -r line; do echo '[[[4e-5, 5e-5], [2e-5, 3e-5]]]'; mishap round; done
'''
SERVER = f'''#!{sys.executable}
import http.server, json, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'metrics\\n')
server = http.server.HTTPServer(('127.0.0.1', 0), Metrics)
ports = pathlib.Path(sys.argv[sys.argv.index('--port_file') + 1])
scratch = ports.with_suffix('.new')
scratch.write_text(json.dumps({{'grpc_port': 1, 'http_port': server.server_port}}))
scratch.rename(ports)
server.serve_forever()
'''
NVIDIA_SMI = r'''#!/bin/sh
case "$*" in
  *name,driver_version\ *) echo "Fake GPU, 999.1" ;;
  *compute_cap\ *) echo 9.0 ;;
  *) echo "what nvidia-smi says" ;;
esac
'''
# Runs the program behind its own options.
WRAPPER = '#!/bin/sh\nwhile [ ! -x "$1" ] || [ -d "$1" ]; do shift; done\nexec "$@"\n'
NO_COUNTERS = ('ERR_NVGPUCTRPERM - no permission', 'Failed to initialize the profiler: LibraryNotLoaded')
QUICK = ('environment', 'micro', 'check', 'kernels', 'ncu', 'tests', 'sanitizer', 'sweep')


def flags(name, values):
    return [word for value in values for word in (name, value)]


class Rehearsal(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out, self.tools = self.folder / 'out', self.folder / 'tools'
        self.bundle = self.folder / 'bundle'
        scripts = {'kernel_trial': PROGRAM + KERNEL_TRIAL, 'micro_trial': PROGRAM + MICRO_TRIAL,
                   'cuda_on_gpu_test': PROGRAM + GTEST, 'cuda_conformance_on_gpu_test': PROGRAM + GTEST,
                   'solver_bench': PROGRAM + SOLVER_BENCH, 'sweep_bench': PROGRAM + SWEEP,
                   'deeppcr-server': SERVER, 'deeppcr': PROGRAM + CLIENT}
        for name, text in scripts.items():
            self.script(self.bundle / 'bin' / name, text)
        (self.bundle / 'COMMIT').write_text('abc\n')
        (self.bundle / 'CUDA_KEY').write_text('0123 13.0\n')
        self.script(self.tools / 'nvidia-smi', NVIDIA_SMI)
        self.script(self.tools / 'compute-sanitizer', WRAPPER)
        self.script(self.tools / 'ncu', WRAPPER)
        (self.tools / 'python3').symlink_to(sys.executable)
        self.environment = {**os.environ, 'PATH': f'{self.tools}:{os.environ["PATH"]}',
                            'PIDS': str(self.folder / 'pids'), 'MISHAP_AT': '', 'MISHAP': '', 'SIMT': ''}

    def script(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def command(self, parts, *arguments):
        return [ROOT / 'tests/gpu/run.sh', self.out, '--bundle', self.bundle, *flags('--only', parts),
                *arguments]

    def run_all(self, *arguments, parts=QUICK, **environment):
        done = subprocess.run(self.command(parts, *arguments), text=True, capture_output=True,
                              check=False, timeout=120, env={**self.environment, **environment})
        self.printed = done.stdout + done.stderr
        return done.returncode

    def begin(self, *parts, **environment):
        process = subprocess.Popen(self.command(parts), stdout=subprocess.DEVNULL,
                                   env={**self.environment, **environment})
        self.addCleanup(process.kill)
        return process

    def await_true(self, condition):
        """Waits for what the results are to say, and for a hang to have begun."""
        for _ in range(1200):
            if (self.out / 'results.json').exists() and condition():
                return
            time.sleep(0.05)
        self.fail(self.summary())

    def hangs(self):
        return (self.folder / 'pids').exists()

    def results(self):
        return json.loads((self.out / 'results.json').read_text())

    def statuses(self):
        return {step['name']: step['status'] for step in self.results()['steps']}

    def summary(self):
        return (self.out / 'summary.txt').read_text()

    def kernels(self):
        return [(row['step'], row['kernel']) for row in self.results().get('kernels', [])]

    def expect_nobody_left(self):
        for pid in (self.folder / 'pids').read_text().split():
            state = pathlib.Path(f'/proc/{pid}/stat')
            text = state.read_text() if state.exists() else ') Z'
            self.assertEqual(text.rpartition(')')[2].split()[0], 'Z', f'{pid} still runs')

    def expect_all_but(self, *mishaps):
        """Every other step has run."""
        others = {name: status for name, status in self.statuses().items() if name not in mishaps}
        self.assertGreaterEqual(len(others), 25)
        self.assertEqual(set(others.values()), {'ok'}, others)


class WholeTest(Rehearsal):

    def test_a_run_without_mishaps_fills_every_table(self):
        status = self.run_all(parts=(), SIMT=TRIAL)
        self.assertEqual(status, 0, self.printed)
        results, found = self.results(), self.statuses()
        self.assertEqual(set(found.values()), {'ok'}, found)
        self.assertEqual(results['failed'], {})
        # What kernels/cuda_evidence.cmake looks at.
        self.assertEqual((results['cuda_sources'], results['nvcc'], results['tests_passed']),
                         ('0123', '13.0', True))
        self.assertEqual((results['machine'], results['driver'], results['commit']),
                         ('Fake GPU', '999.1', 'abc'))
        self.assertEqual({row['step'] for row in results['kernels']},
                         {*(f'time {name}' for name in steps.WORKLOADS), 'time all shapes'})
        self.assertEqual([row['median_seconds'] for row in results['ladder']], [4.5e-5, 2.5e-5])
        self.assertEqual(results['service'], {'exit_status': 0, 'bench': ['7']})
        self.assertEqual([row['auto_solver'] for row in results['sweep']['rows']], ['first', 'second'])
        self.assertIn('largest_cluster', results['occupancy'])
        # What steps of earlier stages found is there before that of later ones is looked for.
        order = list(found)
        for before, after in (('micro-benchmarks', 'check dense'), ('check backward', 'time W1'),
                              ('time W4', 'ncu NewtonKernel'), ('ncu NewtonKernel', 'cuda_on_gpu_test'),
                              ('memcheck kernels', 'ladder'), ('ladder', 'sweep'), ('sweep', 'service')):
            self.assertLess(order.index(before), order.index(after))
        self.assertLessEqual({path.name for path in self.out.iterdir()},
                             {'summary.txt', 'results.json', 'results.md', 'tests.log', 'sanitizer.log',
                              'ncu.txt', 'server.log', 'metrics.txt'})
        self.fill_readme('gpu-micro', 'gpu-kernels', 'gpu-diffusion-kernels', 'gpu-digits-resnet-1',
                         'gpu-sweep', 'gpu-targets')

    def fill_readme(self, *names):
        readme, folder = self.folder / 'R.md', self.folder / 'results/fake'
        readme.write_text(''.join(f'<!-- measured: {name} -->\n<!-- end measured -->\n' for name in names))
        folder.mkdir(parents=True)
        shutil.copy(self.out / 'results.json', folder)
        subprocess.run([sys.executable, '-B', ROOT / 'deploy/readme_tables.py', '--readme', readme,
                        '--results', folder.parent], check=True, stdout=subprocess.DEVNULL)
        text = readme.read_text()
        self.assertNotIn('Not yet measured', text)
        self.assertIn('| shared | LDS | cycles | 23 | 31 |', text)
        self.assertIn('| W1 newton kernel | <= 25 us |', text)

    def test_another_run_adds_to_the_results(self):
        self.assertEqual(self.run_all(parts=('kernels',)), 0)
        self.assertEqual(self.run_all(parts=('micro',)), 0)
        self.assertEqual(self.run_all(parts=('kernels',)), 0)
        self.assertEqual(len(self.kernels()), 2 * len(steps.WORKLOADS))
        self.assertEqual(len(self.results()['micro']), 2)

    def test_another_runs_programs_are_not_credited_with_what_these_have_found(self):
        self.assertEqual(self.run_all(parts=('check', 'tests')), 0)
        self.assertTrue(self.results()['tests_passed'])
        (self.bundle / 'CUDA_KEY').write_text('4567 13.0\n')
        self.assertEqual(self.run_all(parts=('kernels',)), 0)
        self.assertEqual(self.results()['cuda_sources'], '4567')
        self.assertFalse(self.results()['tests_passed'])
        self.assertNotIn('check dense', self.statuses())


class MishapTest(Rehearsal):

    def test_a_hang_takes_nothing_from_the_others(self):
        status = self.run_all('--limit', 'check newton=1', MISHAP='hang',
                              MISHAP_AT='kernel_trial check small newton')
        self.assertEqual(status, 1, self.printed)
        self.expect_all_but('check newton')
        self.assertEqual(self.statuses()['check newton'], 'timed out')
        self.assertRegex(self.summary(), r'(?m)^timed out +check newton .*in: case L=5 D=3 C=8')
        self.assertRegex(self.summary(), r'1 failed: check newton$')
        self.assertFalse(self.results()['tests_passed'])
        self.assertEqual(self.results()['micro'][0]['name'], 'shared')  # measured before
        self.assertEqual(len(self.kernels()), 2 * len(steps.WORKLOADS))  # and after
        self.expect_nobody_left()

    def test_a_crash_keeps_the_rows_before_it(self):
        status = self.run_all(MISHAP='crash', MISHAP_AT='kernel_trial time W2')
        self.assertEqual(status, 1, self.printed)
        self.expect_all_but('time W2')
        self.assertRegex(self.summary(), r'(?m)^crashed +time W2 .*SIGSEGV; in: case second')
        self.assertIn(('time W2', 'sequential'), self.kernels())
        self.assertNotIn(('time W2', 'newton'), self.kernels())
        self.assertIn(('time W3', 'newton'), self.kernels())

    def test_a_time_out_keeps_the_rows_before_it(self):
        status = self.run_all('--limit', 'micro-benchmarks=2', MISHAP='slow', MISHAP_AT='micro_trial ')
        self.assertEqual(status, 1, self.printed)
        self.expect_all_but('micro-benchmarks')
        self.assertRegex(self.summary(), r'(?m)^timed out +micro-benchmarks .*in: case other')
        names = [row['name'] for row in self.results()['micro']]
        self.assertEqual(names[:3], ['shared', 'slow1', 'slow2'])
        self.assertNotIn('other', names)

    def test_a_cuda_error_names_its_case(self):
        self.assertEqual(self.run_all(parts=('check',), MISHAP='error',
                                      MISHAP_AT='kernel_trial check small newton'), 1)
        self.assertRegex(self.summary(), r'(?m)^failed +check newton .*L=5 D=3 C=8: newton launch: an illegal')
        self.assertEqual(self.statuses()['check backward'], 'ok')

    def test_tests_go_on_behind_one_that_hangs(self):
        status = self.run_all('--limit', 'cuda_on_gpu_test=1', parts=('tests',), MISHAP='hang',
                              MISHAP_AT='A.Second cuda_on_gpu_test')
        self.assertEqual(status, 1, self.printed)
        found = self.statuses()
        self.assertEqual(found['cuda_on_gpu_test'], 'timed out')
        self.assertEqual(found['cuda_on_gpu_test, behind A.Second'], 'ok')
        self.assertEqual(found['cuda_conformance_on_gpu_test'], 'ok')
        self.assertIn('A.Third', (self.out / 'tests.log').read_text())

    def test_the_sweep_keeps_what_it_has(self):
        status = self.run_all('--limit', 'sweep=5', parts=('sweep',), MISHAP='hang',
                              MISHAP_AT='sweep_bench sweep_bench')
        self.assertEqual(status, 1, self.printed)
        self.assertEqual(self.statuses(), {'sweep': 'timed out'})
        self.assertEqual([row['auto_solver'] for row in self.results()['sweep']['rows']], ['first'])
        self.expect_nobody_left()

    def test_what_does_not_fit_the_whole_is_not_started(self):
        status = self.run_all('--whole', '5', '--limit', 'check dense=3', parts=('check', 'kernels', 'sweep'),
                              MISHAP='hang', MISHAP_AT='kernel_trial check small dense')
        self.assertEqual(status, 1, self.printed)
        found = self.statuses()
        self.assertEqual(found['check dense'], 'timed out')
        self.assertEqual(found['sweep'], 'not started')
        self.assertIn('sweep', self.summary().splitlines()[-1])

    def test_counters_that_are_not_permitted_are_a_visible_skip(self):
        for reason in NO_COUNTERS:
            self.script(self.tools / 'ncu', f'#!/bin/sh\necho "==ERROR== {reason}"\nexit 1\n')
            self.assertEqual(self.run_all(parts=('check', 'ncu')), 0, self.printed)
            self.assertRegex(self.summary(), rf'(?m)^skipped +ncu NewtonKernel .*not permitted here.*{reason}')

    def test_a_sanitizer_that_knows_no_such_device_is_a_visible_skip(self):
        self.script(self.tools / 'compute-sanitizer',
                    '#!/bin/sh\necho "========= Error: Device not supported"\nexit 1\n')
        self.assertEqual(self.run_all(parts=('check', 'sanitizer')), 0, self.printed)
        self.assertRegex(self.summary(), r'(?m)^skipped +memcheck kernels .*needs "sanitizer starts"')


class BudgetTest(unittest.TestCase):

    def run_steps(self, *stages, budgets, whole):
        """Statuses of steps (name, seconds of sleep), each of which may take a minute."""
        lanes = [[[runner.Step(name, name, ('sleep', seconds), 60, least=0.5)] for name, seconds in stage]
                 for stage in stages]
        with tempfile.TemporaryDirectory() as folder:
            run = runner.Runner(pathlib.Path(folder), {'steps': []}, lanes, budgets, whole, lambda _: None)
            run.run()
        return {step['name']: step['status'] for step in run.results['steps']}

    def test_what_hangs_does_not_take_the_time_of_later_parts(self):
        self.assertEqual(self.run_steps([('hangs', 60)], [('later', 0)], budgets=[0, 2], whole=3),
                         {'hangs': 'timed out', 'later': 'ok'})

    def test_lanes_of_a_stage_run_side_by_side(self):
        self.assertEqual(self.run_steps([('tests', 1.5), ('sanitizer', 1.5)], budgets=[0], whole=2.5),
                         {'tests': 'ok', 'sanitizer': 'ok'})


class SignalTest(Rehearsal):

    def test_a_terminated_run_says_how_far_it_came(self):
        process = self.begin('micro', 'kernels', 'sweep', MISHAP='hang', MISHAP_AT='kernel_trial time W2')
        self.await_true(lambda: self.hangs() and ('time W2', 'sequential') in self.kernels())
        process.terminate()
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        found = self.statuses()
        self.assertEqual([found[name] for name in ('micro-benchmarks', 'time W1', 'time W2', 'time W3', 'sweep')],
                         ['ok', 'ok', 'interrupted', 'not started', 'not started'])
        self.assertIn(('time W1', 'newton'), self.kernels())
        self.assertIn(('time W2', 'sequential'), self.kernels())
        self.assertRegex(self.summary(), r'(?m)^interrupted +time W2 .*SIGTERM; in: case second')
        self.expect_nobody_left()

    def test_a_terminated_ladder_keeps_its_rounds(self):
        process = self.begin('ladder', MISHAP='hang', MISHAP_AT='solver_bench round')
        self.await_true(lambda: self.hangs() and 'ladder' in self.results())
        process.terminate()
        self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        self.assertEqual(self.statuses(), {'ladder': 'interrupted'})
        self.assertEqual([row['calls'] for row in self.results()['ladder']], [2, 2])
        self.expect_nobody_left()

    def test_a_killed_run_has_left_its_results(self):
        process = self.begin('micro', 'kernels', MISHAP='slow', MISHAP_AT='kernel_trial time W2')
        self.await_true(lambda: ('time W2', 'slow1') in self.kernels())
        process.kill()
        process.wait()
        self.assertEqual(self.statuses()['time W1'], 'ok')
        self.assertEqual(self.statuses()['time W2'], 'running')
        self.assertRegex(self.summary(), r'(?m)^running +time W2')


class WithoutTest(Rehearsal):

    @unittest.skipIf(list(pathlib.Path('/dev').glob('nvidia[0-9]*')), 'there is a GPU')
    def test_without_a_gpu_the_status_is_77(self):
        (self.tools / 'nvidia-smi').write_text('#!/bin/sh\nexit 9\n')
        for name in ('kernel_trial', 'cuda_on_gpu_test', 'cuda_conformance_on_gpu_test'):
            self.script(self.bundle / 'bin' / name, '#!/bin/sh\necho "skipped: there is no GPU"\nexit 77\n')
        self.assertEqual(self.run_all(), 77, self.printed)
        self.assertLessEqual(set(self.statuses().values()), {'ok', 'skipped'})
        self.assertIn('no GPU here', self.printed)

    def test_a_program_that_is_missing_is_a_failure(self):
        (self.bundle / 'bin/cuda_on_gpu_test').unlink()
        self.assertEqual(self.run_all(parts=('tests',)), 1)
        self.assertRegex(self.summary(), r'(?m)^missing +cuda_on_gpu_test .*deploy/bundle.sh --with_tests')

    def test_without_a_bundle_both_programs_are_built_for_this_gpu(self):
        for name in ('kernel_trial', 'micro_trial'):
            (self.bundle / 'bin' / name).rename(self.tools / name)
        self.script(self.tools / 'nvcc', f'''#!/bin/sh
for last; do :; done
case "$*" in
  *" -c "*) echo object >"$last" ;;
  *) name="${{last##*/.}}"; cp "{self.tools}/${{name%.new}}" "$last" ;;
esac
''')
        self.assertEqual(self.run_all(parts=('check', 'micro')), 0, self.printed)
        self.assertEqual(self.statuses()['build kernel_trial'], 'ok')
        log = (self.out / 'tests.log').read_text()
        for source in (ROOT / 'kernels/cuda').glob('*/*.cu'):
            self.assertRegex(log, rf'-arch=sm_90 .*-c {source.relative_to(ROOT)} ')

    def test_a_source_that_does_not_compile_fails_the_steps_of_its_program(self):
        (self.bundle / 'bin/kernel_trial').unlink()
        self.script(self.tools / 'nvcc', '#!/bin/sh\necho "error: $*"\nexit 1\n')
        self.assertEqual(self.run_all(parts=('check', 'micro')), 1)
        found = self.statuses()
        self.assertEqual([found[name] for name in ('build kernel_trial', 'check newton', 'micro-benchmarks')],
                         ['failed', 'not started', 'ok'])

    def test_unknown_parts_and_steps_are_refused(self):
        self.assertEqual(self.run_all(parts=('everything',)), 2)
        self.assertEqual(self.run_all('--limit', 'nothing=3'), 1)
        self.assertIn('no step nothing', self.printed)


class DeclarationTest(unittest.TestCase):

    def test_every_stage_has_its_time_within_the_whole(self):
        self.assertLessEqual(sum(seconds for _, seconds in steps.STAGES), steps.WHOLE)
        self.assertLess(steps.WHOLE, 540)

    def test_usage_names_every_part(self):
        usage = subprocess.run([ROOT / 'tests/gpu/run.sh', '--help'], text=True, capture_output=True,
                               check=True).stdout
        for part in steps.PARTS:
            if part != 'build':
                self.assertIn(part, usage)

    def test_kernels_that_are_profiled_exist(self):
        sources = ''.join(path.read_text() for path in (ROOT / 'kernels/cuda').rglob('*.cu*'))
        for kernel, _ in steps.PROFILED:
            self.assertRegex(sources, rf'\b{kernel}\(const ', kernel)

    def test_libraries_are_found_in_the_wheels_of_pytorch(self):
        for place, library in (('nvidia/cu13/lib', 'libcublas.so.13'), ('nvidia/cuda_nvrtc/lib', 'libnvrtc.so.12')):
            with tempfile.TemporaryDirectory() as folder:
                wheel = pathlib.Path(folder) / place
                wheel.mkdir(parents=True)
                self.assertEqual(steps.library_folders('', {folder}), [])
                (wheel / library).touch()
                self.assertEqual(steps.library_folders('', {folder}), [str(wheel)])

    def test_benchmarks_have_the_names_of_the_model(self):
        source = (HERE / 'micro_trial.cu').read_text()
        printed = set(re.findall(r'\(bench, "(\w+)"|bench\.Row\("(\w+)"|Print\("(\w+)"|LaunchRow\("(\w+)"|'
                                 r'bench\.Row\(store \? "(\w+)"', source))
        printed = {name for names in printed for name in names if name}
        # What no program can tell apart from the instructions around it.
        untold = {'invalidate', 'operands', 'taken_branch'}
        self.assertEqual(set(gpu_tables.assumptions()) - printed, untold)


if __name__ == '__main__':
    TRIAL = sys.argv.pop(1).removeprefix('none')
    unittest.main()
