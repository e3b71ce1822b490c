#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Behaviour of the shell scripts and of the demo's Python that needs no build and no network."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ('deploy/install.sh', 'deploy/build.sh', 'deploy/demo.sh', 'deploy/runtime_packages.sh',
           'deploy/sbom.sh', 'deploy/wheels.sh', 'tests/run.sh', 'tests/lint/run.sh')
sys.path.insert(0, str(ROOT / 'deploy/demo'))
import picture  # pylint: disable=wrong-import-position


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60,
                          cwd=ROOT, **options)


class ScriptsTest(unittest.TestCase):

    def test_help_prints_the_usage(self):
        for script in SCRIPTS:
            with self.subTest(script):
                result = run(script, '--help')
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f'usage: {script}', result.stdout)
                self.assertNotIn('set -', result.stdout)

    def test_unknown_flag_is_refused_with_status_2(self):
        for script in SCRIPTS:
            if script not in ('deploy/runtime_packages.sh', 'deploy/sbom.sh'):
                with self.subTest(script):
                    result = run(script, '--no_such_flag')
                    self.assertEqual(result.returncode, 2, result.stdout)
                    self.assertIn('--no_such_flag', result.stderr)

    def test_continuous_integration_runs_the_tests(self):
        text = (ROOT / '.ci/run').read_text()
        self.assertTrue(text.startswith('#!/usr/bin/env bash\n'))
        self.assertIn('tests/run.sh', text)

    def test_profiles_contain_one_another(self):
        def packages(profile):
            result = run('deploy/install.sh', '--list', profile)
            self.assertEqual(result.returncode, 0, result.stderr)
            return set(result.stdout.split())

        self.assertLess(packages('build'), packages('demo'))
        self.assertLess(packages('demo'), packages('test'))
        self.assertLess(packages('demo'), packages('bench'))
        self.assertLess(packages('demo'), packages('peers'))
        self.assertIn('clang-14', packages('fuzz'))

    def test_unknown_profile_is_refused(self):
        result = run('deploy/install.sh', '--list', 'nonsense')
        self.assertEqual(result.returncode, 2)
        self.assertIn('nonsense', result.stderr)

    def install_with_fake_apt(self, apt_body):
        """Runs install.sh where nothing counts as installed and apt-get is a script of ours."""
        with tempfile.TemporaryDirectory() as folder:
            tools = {'dpkg-query': 'exit 1', 'apt-get': apt_body, 'sleep': 'exit 0',
                     'id': 'echo 0', 'systemctl': 'exit 0'}
            for name, body in tools.items():
                path = pathlib.Path(folder) / name
                path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.log\n{body}\n')
                path.chmod(0o755)
            environment = dict(os.environ, PATH=f'{folder}:{os.environ["PATH"]}')
            result = run('deploy/install.sh', 'build', env=environment)
            log = pathlib.Path(folder) / 'apt-get.log'
            return result, log.read_text().splitlines()

    def test_missing_packages_are_named_and_installed(self):
        result, calls = self.install_with_fake_apt('exit 0')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('libgrpc++-dev', result.stdout)
        self.assertEqual(len(calls), 2)
        self.assertTrue(calls[0].startswith('update'))
        self.assertTrue(calls[1].startswith('install -y'))
        self.assertIn('ninja-build', calls[1])

    def test_without_network_apt_is_tried_twice_and_the_error_says_so(self):
        result, calls = self.install_with_fake_apt('exit 100')
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(calls), 2)
        self.assertIn('network', result.stderr)
        self.assertIn('libgrpc++-dev', result.stderr)

    def test_build_rejects_bad_values_before_it_configures(self):
        for arguments, word in ((('--cuda', 'maybe'), 'auto, on or off'),
                                (('--jobs', '0'), '--jobs'),
                                (('--preset',), 'needs a value')):
            with self.subTest(arguments):
                result = run('deploy/build.sh', *arguments)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(word, result.stderr)
                self.assertNotIn('configuring', result.stdout)

    def test_runtime_packages_names_the_owner_of_the_c_library(self):
        result = run('deploy/runtime_packages.sh', '/bin/bash')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('libc6', result.stdout.split())

    def test_the_bill_of_materials_has_every_package_with_its_version(self):
        with tempfile.TemporaryDirectory() as folder:
            server = pathlib.Path(folder) / 'server'
            server.write_text('#!/bin/sh\necho deeppcr-server 1.2.3\n')
            server.chmod(0o755)
            bill = run('deploy/sbom.sh', str(server), env={**os.environ, 'SOURCE_DATE_EPOCH': '1'})
            again = run('deploy/sbom.sh', str(server), env={**os.environ, 'SOURCE_DATE_EPOCH': '1'})
        self.assertEqual(bill.returncode, 0, bill.stderr)
        self.assertEqual(bill.stdout, again.stdout)
        self.assertIn('Created: 1970-01-01T00:00:01Z', bill.stdout)
        head, own, *packages = bill.stdout.split('\n\n')
        self.assertIn('SPDXVersion: SPDX-2.3', head)
        self.assertIn('PackageName: deeppcr-server\nSPDXID: SPDXRef-deeppcr-server\nPackageVersion: 1.2.3', own)
        installed = run('dpkg-query', '-W', '-f', '${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n')
        expected = [line.split()[1:] for line in installed.stdout.splitlines() if line[1] == 'i']
        self.assertEqual(len(packages), len(expected))
        for package, (name, version, architecture) in zip(packages, expected):
            self.assertIn(f'PackageName: {name}\n', package)
            self.assertIn(f'PackageVersion: {version}\n', package)
            url = f'pkg:deb/debian/{name}@{version}'.replace('+', '%2B').replace(':', '%3A')
            url = url.replace('pkg%3A', 'pkg:') + f'?arch={architecture}'
            self.assertIn(f'purl {url}\n', package)
            self.assertIn('Relationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-Package-', package)
        missing = run('deploy/sbom.sh', '/bin/false')
        self.assertNotEqual(missing.returncode, 0)
        self.assertIn('does not say its version', missing.stderr)

    def test_the_bill_of_materials_has_what_is_installed_and_held(self):
        with tempfile.TemporaryDirectory() as folder:
            server, query = pathlib.Path(folder) / 'server', pathlib.Path(folder) / 'dpkg-query'
            server.write_text('#!/bin/sh\necho deeppcr-server 1.2.3\n')
            query.write_text('#!/bin/sh\nprintf "$LINES_OF_DPKG"\n')
            for each in (server, query):
                each.chmod(0o755)

            def bill(*statuses):
                lines = ''.join(f'{status}\tpackage{i}\t1\tamd64\tsource\t1\n'
                                for i, status in enumerate(statuses))
                return run('deploy/sbom.sh', str(server), env={
                    **os.environ, 'PATH': f'{folder}:{os.environ["PATH"]}', 'LINES_OF_DPKG': lines})

            listed = bill('ii ', 'hi ', 'rc ', 'un ')
            self.assertEqual(listed.returncode, 0, listed.stderr)
            for i, is_listed in enumerate((True, True, False, False)):
                self.assertEqual(f'PackageName: package{i}\n' in listed.stdout, is_listed)
            none = bill()
        self.assertNotEqual(none.returncode, 0)
        self.assertIn('dpkg lists no package', none.stderr)


class RunTest(unittest.TestCase):
    """tests/run.sh with every command that it calls replaced by one that notes its arguments."""

    def run_with(self, *flags, failing=''):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ('deploy/install.sh', 'deploy/build.sh', 'tests/lint/run.sh',
                         'tests/fuzz/run.sh', 'tests/gpu/machine_model.py', 'bin/ctest', 'bin/ninja',
                         'bin/cmake', 'bin/nvcc'):
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text('#!/bin/bash\n'
                                f'line="{name} $*"; echo "$line" >> {root}/calls\n'
                                'case "$line" in *ctest*) echo "100% tests passed, 0 tests failed '
                                'out of 7";; *nvcc*) echo "release 99.9, V99";; esac\n'
                                f'[[ -z "{failing}" || "$line" != *"{failing}"* ]]\n')
                path.chmod(0o755)
            for name in ('tests/run.sh', 'deploy/lib.sh'):
                shutil.copy(ROOT / name, root / name)
            # Environments that are there already, so that nothing is fetched.
            for name, wanted in (('tritonclient', 'tests/integration/tritonclient_requirements.txt'),
                                 ('nvdisasm', 'tests/gpu/nvdisasm_requirements.txt'),
                                 ('torch', 'tests/models/requirements.txt'),
                                 ('python', 'tests/client/python/requirements.txt'),
                                 ('docs', 'client/python/docs/requirements.txt'),
                                 ('envoy', 'tests/integration/envoy_requirements.txt'),
                                 ('perf_analyzer', 'tests/integration/perf_analyzer_requirements.txt')):
                for path in (root / wanted, root / 'build' / name / 'requirements.txt'):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text('')
            environment = dict(os.environ, PATH=f'{root}/bin:{os.environ["PATH"]}')
            result = subprocess.run([str(root / 'tests/run.sh'), *flags], capture_output=True,
                                    text=True, check=False, timeout=60, env=environment)
            return result, (root / 'calls').read_text().splitlines()

    def test_plain_run_leaves_out_what_is_slow(self):
        result, calls = self.run_with()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        tests = [call for call in calls if call.startswith('bin/ctest')]
        self.assertEqual(len(tests), 1)
        self.assertIn('-LE slow', tests[0])
        self.assertIn('--no-tests=error', tests[0])
        self.assertFalse([call for call in calls if 'asan' in call or 'fuzz' in call])
        summary = result.stdout.split('== summary')[1]
        self.assertIn('100% tests passed, 0 tests failed out of 7', summary)
        self.assertIn('release 99.9', summary)

    def test_full_run_adds_sanitizers_fuzzers_and_slow_tests(self):
        result, calls = self.run_with('--full')
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for wanted in ('deploy/install.sh test fuzz image', '--preset asan', '--preset tsan',
                       '--preset fuzz', 'build/older_gpus', 'build/asan', '-L no_grpc', '-L slow', '--seconds 60'):
            self.assertTrue([call for call in calls if wanted in call], wanted)

    def test_any_failing_phase_fails_the_run(self):
        for failing in ('deploy/install.sh', 'tests/lint/run.sh', '--preset test', '-LE slow',
                        '--target deeppcr_cuda', 'machine_model', 'build/older_gpus', '--preset asan', 'ctest --test-dir build/asan',
                        'ctest --test-dir build/tsan', 'tests/fuzz/run.sh', '-L slow'):
            with self.subTest(failing):
                result, _ = self.run_with('--full', failing=failing)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn('FAILED', result.stdout)

    def test_a_failing_check_does_not_hide_the_tests(self):
        result, calls = self.run_with(failing='tests/lint/run.sh')
        self.assertEqual(result.returncode, 1)
        self.assertTrue([call for call in calls if call.startswith('bin/ctest')])

    def test_without_install_apt_is_left_alone(self):
        result, calls = self.run_with('--no_install')
        self.assertEqual(result.returncode, 0)
        self.assertFalse([call for call in calls if call.startswith('deploy/install.sh')])


class DemoTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.true = np.arange(12) % 10
        np.save(self.folder / 'x.npy', np.random.default_rng(1).random((12, 64), np.float32))
        np.save(self.folder / 'y.npy', self.true)

    def scores(self, name, labels):
        path = self.folder / f'{name}.npy'
        np.save(path, np.eye(10, dtype=np.float32)[labels])
        return f'{name}={path}'

    def judge(self, *outputs):
        return run(sys.executable, '-B', 'deploy/demo/labels.py',
                   '--inputs', str(self.folder / 'x.npy'), '--labels', str(self.folder / 'y.npy'),
                   '--picture', str(self.folder / 'p.png'), '--must_agree', 'newton,auto', *outputs)

    def test_agreement_passes_and_prints_accuracies(self):
        almost = self.true.copy()
        almost[3] = 7
        result = self.judge(self.scores('sequential', almost), self.scores('newton', almost),
                            self.scores('auto', almost))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn('91.67%', result.stdout)
        self.assertIn('0 of 12', result.stdout)

    def test_one_differing_label_fails_and_is_named(self):
        wrong = self.true.copy()
        wrong[5] = 0
        result = self.judge(self.scores('sequential', self.true), self.scores('newton', wrong),
                            self.scores('auto', self.true))
        self.assertEqual(result.returncode, 1)
        self.assertIn('digit 5: newton says 0, sequential says 5', result.stdout)

    def test_a_solver_that_never_answered_fails(self):
        result = self.judge(self.scores('sequential', self.true), self.scores('newton', self.true))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('auto', result.stderr)

    def test_wrong_number_of_rows_fails(self):
        result = self.judge(self.scores('sequential', self.true[:5]))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('expected 12 rows', result.stderr)

    def test_picture_marks_wrong_predictions_in_red(self):
        images = np.zeros((2, 64))
        right = np.array(picture.digits_picture(images, [3, 4], [3, 4], 2))
        wrong = np.array(picture.digits_picture(images, [3, 9], [3, 4], 2))
        self.assertFalse((right == picture.RED).all(axis=2).any())
        self.assertTrue((wrong == picture.RED).all(axis=2).any())


if __name__ == '__main__':
    unittest.main()
