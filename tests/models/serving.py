# SPDX-License-Identifier: Apache-2.0
"""The real server on a folder of models, and requests by the command line."""

import dataclasses
import json
import pathlib
import subprocess
import time

import numpy as np

LONGEST_START = 600


@dataclasses.dataclass
class Answer:
    samples: np.ndarray
    states: np.ndarray  # [n, L + 1, D]
    report: dict        # of the request, as the command line writes it


class Server:
    """Started by `with`; stopped at its end."""

    def __init__(self, server_binary, client_binary, repository, folder, flags=()):
        self.binaries, self.folder = (server_binary, client_binary), pathlib.Path(folder)
        self.log = self.folder / 'server.log'
        self.ports = self.folder / 'ports.json'
        self.command = [server_binary, f'--model_repository={repository}', '--listen=127.0.0.1:0',
                        '--http_listen=127.0.0.1:0', f'--port_file={self.ports}',
                        '--shadow_rate=0', *flags]

    def __enter__(self):
        self.ports.unlink(missing_ok=True)
        with open(self.log, 'wb') as log:
            self.process = subprocess.Popen(self.command, stderr=log, stdout=log)
        deadline = time.monotonic() + LONGEST_START
        while not self.ports.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f'the server did not start: {self.said()[-2000:]}')
            time.sleep(0.02)
        self.address = f'127.0.0.1:{json.loads(self.ports.read_text())["grpc_port"]}'
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def said(self):
        return self.log.read_text(encoding='utf-8')

    def generate(self, name, solver, x, noise, others=(), rtol=1e-4):
        """An Answer; arrays are float32, a label integers."""
        arguments = ['--initial_noise', self.saved('x', x), '--step_noise',
                     self.saved('noise', noise), '--json', self.folder / 'out.json']
        for other in others:
            if np.issubdtype(other.dtype, np.integer):
                arguments += ['--class', ','.join(map(str, other))]
            else:
                arguments += ['--conditioning', self.saved('c', other)]
        answer = self.ask('generate', name, solver, rtol, arguments)
        return dataclasses.replace(answer, samples=answer.samples.reshape(x.shape))

    def forward(self, name, solver, x, rtol=1e-4):
        """An Answer, whose samples are the outputs [n, output_dim]; x is float32 [n, input_dim]."""
        return self.ask('forward', name, solver, rtol,
                        ['--in', self.saved('x', x), '--report', self.folder / 'out.json'])

    def ask(self, command, name, solver, rtol, arguments):
        done = subprocess.run([self.binaries[1], command, name, '--server', self.address,
                               '--solver', solver, '--rtol', str(rtol), '--out',
                               self.folder / 'out.npy', '--trajectory', self.folder / 'states.npy',
                               '--quiet', *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise RuntimeError(f'deeppcr {command} {name}: {done.stderr.decode()}')
        requests = json.loads((self.folder / 'out.json').read_text(encoding='utf-8'))['requests']
        assert len(requests) == 1, 'all samples in one request'
        return Answer(np.load(self.folder / 'out.npy'), np.load(self.folder / 'states.npy'),
                      requests[0])

    def saved(self, name, array):
        """[n, ...] as the command line takes it: a step's noise is [n, L, D], others [n, D]."""
        path = self.folder / f'{name}.npy'
        kept = array.shape[:2 if name == 'noise' else 1]
        np.save(path, array.reshape(*kept, -1).astype(np.float32))
        return path
