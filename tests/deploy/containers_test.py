#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the Dockerfile and the compose files, which no test machine can run."""

import fnmatch
import json
import pathlib
import re
import unittest

import yaml

from deploy_files import COMPOSE, DEPLOY, ROOT, flags_of, server_flags


def seconds(text):
    """'45s' or '1m30s' as a number."""
    parts = re.fullmatch(r'(?:(\d+)m)?(?:(\d+)s)?', text)
    return 60 * int(parts.group(1) or 0) + int(parts.group(2) or 0)


class ComposeTest(unittest.TestCase):

    def test_every_service_is_hardened(self):
        self.assertEqual(set(COMPOSE['services']), {'server', 'prometheus', 'alertmanager', 'grafana'})
        for name, service in COMPOSE['services'].items():
            with self.subTest(name):
                self.assertEqual(service['cap_drop'], ['ALL'])
                self.assertIn('no-new-privileges:true', service['security_opt'])
                self.assertTrue(service['read_only'])
                self.assertNotIn('privileged', service)

    def test_ports_are_published_on_loopback_only(self):
        for name, service in COMPOSE['services'].items():
            for port in service['ports']:
                self.assertTrue(port.startswith('127.0.0.1:'), f'{name}: {port}')

    def test_mounts_exist_and_are_read_only(self):
        for name, service in COMPOSE['services'].items():
            for mount in service['volumes']:
                source, _, mode = (mount + '::').split(':')[:3]
                if source.startswith('.'):
                    self.assertEqual(mode, 'ro', f'{name}: {mount}')
                    self.assertTrue((DEPLOY / source).is_dir(), f'{name}: {mount}')
                else:
                    self.assertIn(source, COMPOSE['volumes'], name)

    def test_images_are_pinned(self):
        for name, service in COMPOSE['services'].items():
            wanted = ':cpu$' if name == 'server' else r':v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}$'
            self.assertRegex(service['image'], wanted, name)

    def test_server_flags_exist_and_the_grace_period_covers_the_drain(self):
        service = COMPOSE['services']['server']
        known = server_flags()
        given = flags_of(service['command'])

        self.assertGreater(len(known), 15)
        self.assertLessEqual(set(given), set(known))
        drain = sum(float(given.get(flag, known[flag]))
                    for flag in ('drain_seconds', 'drain_pause_seconds'))
        self.assertGreater(drain, 0)
        self.assertGreater(seconds(service['stop_grace_period']), drain + 5)

    def test_monitoring_does_not_wait_for_what_it_tells_of(self):
        """A server that a model keeps from being ready is when its metrics are wanted."""
        waits = COMPOSE['services']['prometheus']['depends_on']['server']['condition']
        self.assertEqual(waits, 'service_started')

    def test_build_context_is_the_repository(self):
        build = COMPOSE['services']['server']['build']
        self.assertTrue((DEPLOY / build['context'] / 'Dockerfile').is_file())


class GpuComposeTest(unittest.TestCase):
    def test_overrides_the_server_alone_and_asks_for_the_gpu_backend(self):
        override = yaml.safe_load((DEPLOY / 'compose.gpu.yaml').read_text())['services']
        self.assertEqual(set(override), {'server'})
        server = override['server']
        self.assertEqual(server['environment'], {'DEEPPCR_BACKEND': 'cuda'})
        device = server['deploy']['resources']['reservations']['devices'][0]
        self.assertEqual((device['driver'], device['capabilities']), ('nvidia', ['gpu']))
        arguments = set(re.findall(r'^ARG (\w+)', (ROOT / 'Dockerfile').read_text(), re.MULTILINE))
        self.assertLessEqual(set(server['build']['args']), arguments)


class DockerfileTest(unittest.TestCase):

    def setUp(self):
        text = re.sub(r'\\\n\s*', '', (ROOT / 'Dockerfile').read_text())
        self.lines = [line for line in text.splitlines() if line and not line.startswith('#')]
        starts = [i for i, line in enumerate(self.lines) if line.startswith('FROM ')]
        self.stages = [self.lines[a:b] for a, b in zip(starts, starts[1:] + [len(self.lines)])]
        self.final = self.stages[-1]

    def instruction(self, lines, name):
        found = [line for line in lines if line.startswith(name + ' ')]
        self.assertEqual(len(found), 1, f'{name}: {found}')
        return found[0].removeprefix(name + ' ')

    def test_bases_are_build_arguments(self):
        self.assertEqual(len(self.stages), 2)
        for name in ('BUILD_BASE=debian:12', 'BASE=debian:12-slim'):
            pinned = [line for line in self.lines if line.startswith(f'ARG {name}@')]
            self.assertEqual(len(pinned), 1, name)
            self.assertRegex(pinned[0], '@sha256:[0-9a-f]{64}$')
        self.assertTrue(self.stages[0][0].startswith('FROM ${BUILD_BASE}'))
        self.assertTrue(self.final[0].startswith('FROM ${BASE}'))

    def test_builds_by_the_one_recipe(self):
        runs = [line for line in self.stages[0] if line.startswith('RUN ')]
        self.assertTrue(any(line.startswith('RUN deploy/install.sh build') for line in runs))
        self.assertTrue(any(line.startswith('RUN deploy/build.sh ') for line in runs))
        self.assertFalse([line for line in runs if 'cmake ' in line])

    def test_what_it_starts_is_installed(self):
        binary, = json.loads(self.instruction(self.final, 'ENTRYPOINT'))
        installed = re.findall(r'install\(TARGETS (\S+) RUNTIME\)', ''.join(
            (ROOT / folder / 'CMakeLists.txt').read_text() for folder in ('server', 'client')))
        self.assertIn(pathlib.PurePath(binary).name, installed)

    def test_runs_as_nobody_special(self):
        user = self.instruction(self.final, 'USER')
        self.assertRegex(user, r'^[1-9]\d*:[1-9]\d*$')

    def test_entrypoint_and_command_are_in_exec_form(self):
        entrypoint = json.loads(self.instruction(self.final, 'ENTRYPOINT'))
        command = json.loads(self.instruction(self.final, 'CMD'))
        self.assertEqual(entrypoint, ['/usr/local/bin/deeppcr-server'])
        self.assertLessEqual(set(flags_of(command)), set(server_flags()))

    def test_healthcheck_is_the_binarys_own_probe(self):
        check = self.instruction(self.final, 'HEALTHCHECK')
        binary, probe = json.loads(check[check.index('CMD ') + 4:])
        command = flags_of(json.loads(self.instruction(self.final, 'CMD')))
        self.assertEqual(binary, '/usr/local/bin/deeppcr-server')
        self.assertIn('probe', server_flags())
        # By HTTP, which has no TLS to be configured for.
        port = command['http_listen'].rpartition(':')[2]
        self.assertEqual(probe, f'--probe=http://127.0.0.1:{port}')

    def test_sources_that_are_copied_reach_the_build(self):
        sources = [source for line in self.stages[0] if line.startswith('COPY ')
                   for source in line.split()[1:-1]]
        self.assertGreater(len(sources), 5)
        patterns = [line for line in (ROOT / '.dockerignore').read_text().splitlines()
                    if line and not line.startswith('#')]
        for source in sources:
            self.assertTrue((ROOT / source).exists(), source)
            self.assertFalse(self.is_ignored(source, patterns), source)

    def test_every_subdirectory_of_the_build_is_copied(self):
        copied = ' '.join(line for line in self.stages[0] if line.startswith('COPY ')).split()
        cmake = (ROOT / 'CMakeLists.txt').read_text()
        for folder in re.findall(r'add_subdirectory\((\w+)\)', cmake):
            if folder != 'tests':
                self.assertIn(folder, copied)

    @staticmethod
    def is_ignored(path, patterns):
        """Docker's rule: the last pattern that matches the path or a parent of it decides."""
        ignored = False
        prefixes = [str(p) for p in [pathlib.PurePath(path), *pathlib.PurePath(path).parents]]
        for pattern in patterns:
            negated = pattern.startswith('!')
            if any(fnmatch.fnmatch(prefix, pattern.lstrip('!')) for prefix in prefixes):
                ignored = not negated
        return ignored


if __name__ == '__main__':
    unittest.main()
