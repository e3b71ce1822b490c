#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the image of the Dockerfile and runs it, as its entry point, user and health check say.

The engine is Debian's buildah, and the base a Debian that debootstrap makes of this machine's
mirror: no registry is asked. Takes a compilation of the whole server.

usage: image_test.py
Exit status 77, a visible skip, for others than root, or without buildah or debootstrap.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / 'deploy/models/repository'
PATIENCE_SECONDS = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def mirror():
    """The URL of the mirror that this machine installs packages from."""
    targets = subprocess.run(
        ['apt-get', 'indextargets', '--format', '$(CODENAME) $(REPO_URI)', 'Created-By: Packages'],
        check=True, capture_output=True, text=True).stdout.splitlines()
    return next(line.split()[1] for line in targets if line.startswith('bookworm '))


class Engine:
    """Images and containers in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = dict(os.environ, BUILDAH_ISOLATION='chroot')

    def command(self, *arguments):
        return ['buildah', '--storage-driver', 'vfs', '--root', f'{self.folder}/images', '--runroot',
                f'{self.folder}/run', *map(str, arguments)]

    def __call__(self, *arguments):
        done = subprocess.run(self.command(*arguments), env=self.environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f'{arguments}: status {done.returncode}\n{done.stdout[-6000:]}')
        return done.stdout

    def make_base(self, tag):
        base = self.folder / 'base'
        base.mkdir()
        subprocess.run(['debootstrap', '--variant=minbase', 'bookworm', base / 'tree', mirror()],
                       check=True, stdout=subprocess.DEVNULL)
        (base / 'Dockerfile').write_text('FROM scratch\nCOPY tree /\n')
        self('bud', '-t', tag, base)
        shutil.rmtree(base)


class ImageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(dir='/var/tmp', prefix='deeppcr-image-')
        cls.engine = Engine(pathlib.Path(cls.folder.name))
        cls.engine.make_base('localhost/debian:12')
        bases = [f'--build-arg={name}=localhost/debian:12' for name in ('BUILD_BASE', 'BASE')]
        cls.engine('bud', '--pull-never', *bases, '--network', 'host', '--format', 'docker', '-t', 'image', ROOT)
        cls.config = json.loads(cls.engine('inspect', '--type', 'image', 'image'))['Docker']['config']
        cls.container = cls.engine('from', '--pull-never', '--name', 'container', '-v',
                                   f'{MODELS}:/models:ro', 'image').strip()

    @classmethod
    def tearDownClass(cls):
        cls.engine('rm', '--all')
        cls.engine('rmi', '--all', '--force')
        cls.folder.cleanup()

    def inside(self, *arguments):
        """What a program prints in a container of the image, as the image's user."""
        return self.engine('run', '--network', 'host', self.container, '--', *arguments)

    def test_serves_as_it_says(self):
        ports = {'8001': str(free_port()), '8002': str(free_port())}

        def moved(words):
            for port, free in ports.items():
                words = [word.replace(f':{port}', f':{free}') for word in words]
            return words

        server = subprocess.Popen(
            self.engine.command('run', '--network', 'host', self.container, '--',
                                *moved(self.config['Entrypoint'] + self.config['Cmd'])),
            env=self.engine.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            kind, *probe = self.config['Healthcheck']['Test']
            self.assertEqual(kind, 'CMD')
            end = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    self.inside(*moved(probe))
                    break
                except AssertionError:
                    self.assertIsNone(server.poll(), 'the server ended')
                    self.assertLess(time.monotonic(), end, 'the health check never passed')
                    time.sleep(1)
            pid, = self.processes_at(ports['8001'])
            status = pathlib.Path(f'/proc/{pid}/status').read_text()
            self.assertEqual(self.config['User'], '10001:10001')
            self.assertIn('Uid:\t10001\t10001\t10001\t10001', status)
            address = f'127.0.0.1:{ports["8001"]}'
            models = self.inside('/usr/local/bin/deeppcr', 'models', '--server', address)
            for model in MODELS.iterdir():
                self.assertIn(model.name, models)
            compared = self.inside('/usr/local/bin/deeppcr', 'compare', 'digits-ddpm', '--num', '2',
                                   '--server', address)
            self.assertIn('newton', compared)
            os.kill(pid, getattr(signal, self.config.get('StopSignal') or 'SIGTERM'))
            self.assertEqual(server.wait(60), 0)
        finally:
            # The engine's end is not that of the server, which would keep the pipe.
            for pid in self.processes_at(ports['8001']):
                os.kill(pid, signal.SIGKILL)
            server.kill()
            print(server.communicate(timeout=60)[0][-3000:])

    @staticmethod
    def processes_at(port):
        for folder in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                words = (folder / 'cmdline').read_bytes().decode().split('\0')
            except OSError:
                continue
            if words[0] == '/usr/local/bin/deeppcr-server' and f'--listen=0.0.0.0:{port}' in words:
                yield int(folder.name)

    def test_holds_what_packages_own_and_no_compiler(self):
        self.assertEqual(self.inside('ls', '/usr/local/bin').split(), ['deeppcr', 'deeppcr-server'])
        # What its bill of materials is made of: each library is of a package that it lists.
        listed = self.inside('dpkg-query', '-W', '-f', '${binary:Package}\\n').split()
        for package in ('libgrpc++1.51', 'libprotobuf32', 'zlib1g'):
            self.assertTrue(any(each.split(':')[0] == package for each in listed), package)
        bill = self.inside('cat', '/usr/local/share/deeppcr/sbom.spdx')
        named = re.findall(r'^PackageName: (.*)$', bill, re.M)
        self.assertEqual(named, ['deeppcr-server', *(each.split(':')[0] for each in listed)])
        script = '''ldd /usr/local/bin/* | grep "not found"
                    for program in /usr/local/bin/*; do ldd "$program"; done |
                    awk '$2 == "=>" {print $3}' | sort -u | while read -r library; do
                      dpkg-query -S "$library" "/usr$library" "$(readlink -f "$library")" 2>/dev/null |
                        grep -q . || echo "no package owns $library"
                    done; command -v g++ cmake protoc || true'''
        self.assertEqual(self.inside('sh', '-c', script).strip(), '')


if __name__ == '__main__':
    missing = [name for name in ('buildah', 'debootstrap') if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        print(f'skipped: {", ".join(missing) or "root"} is not here')
        sys.exit(77)
    unittest.main()
