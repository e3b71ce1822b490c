# SPDX-License-Identifier: Apache-2.0
"""The real server as a process of its own, for tests with programs of others."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO_MODELS = ROOT / 'deploy/models/repository'
LONGEST_START = 300


class RunningServer:
    """Serves on free ports of this machine from the beginning of `with` to its end."""

    def __init__(self, binary, flags=(), repository=DEMO_MODELS, environment=None):
        self.folder = tempfile.TemporaryDirectory()
        self.ports = pathlib.Path(self.folder.name) / 'ports'
        self.log = open(pathlib.Path(self.folder.name) / 'log', 'w+', encoding='utf-8')
        self.command = [str(binary), f'--model_repository={repository}', '--listen=127.0.0.1:0',
                        '--http_listen=127.0.0.1:0', f'--port_file={self.ports}', *flags]
        self.environment = {**os.environ, **(environment or {})}

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT,
                                        env=self.environment)
        deadline = time.monotonic() + LONGEST_START
        while not self.ports.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f'the server did not start: {self.said()}')
            time.sleep(0.05)
        ports = json.loads(self.ports.read_text(encoding='utf-8'))
        self.address = f'127.0.0.1:{ports["grpc_port"]}'
        self.http = f'http://127.0.0.1:{ports["http_port"]}'
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.log.close()
        self.folder.cleanup()

    def stop(self):
        """Ends the server as its operator does, and sees that nothing was cut off."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        assert status == 0, f'{status}: {self.said()}'

    def kill(self):
        self.process.kill()
        self.process.wait()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def metric(self, series):
        """The value of a series of /metrics, or 0 if there is none."""
        with urllib.request.urlopen(f'{self.http}/metrics', timeout=10) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f'{series} '):
                    return float(line.split()[-1])
        return 0.0
