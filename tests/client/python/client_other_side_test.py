#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python client where the other side is not what it expects, and in event loops.

The other side: TLS that does not fit, a server that restarts in mid-call, one of another version,
one of another kind.

usage: client_other_side_test.py SERVER
"""

import asyncio
import concurrent.futures
import contextlib
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc
import numpy as np

import installed

installed.on_path()

import deeppcr  # noqa: E402
import deeppcr.aio  # noqa: E402
from deeppcr import protocol  # noqa: E402

SERVER = ''
MODELS = installed.ROOT / 'deploy/models/repository'
X = np.random.default_rng(1).random((2, 64), np.float32)

_folder = tempfile.TemporaryDirectory()


def path(name):
    return str(pathlib.Path(_folder.name) / name)


def serve(**flags):
    for model in ('digits-mlp', 'digits-class'):
        shutil.copytree(MODELS / model, path(f'models/{model}'), dirs_exist_ok=True)
    return deeppcr.serve(path('models'), binary=SERVER, shadow_rate=0, **flags)


def make_certificate(name, authority=None, names='IP:127.0.0.1'):
    """NAME.pem and NAME.key, signed by the authority or by themselves."""

    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], check=True, capture_output=True)

    key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', f'/CN={name}',
           '-keyout', path(f'{name}.key')]
    if authority is None:
        openssl('req', '-x509', *key, '-days', '2', '-out', path(f'{name}.pem'))
        return
    openssl('req', *key, '-out', path('request'))
    pathlib.Path(path('names')).write_text(f'subjectAltName={names}\n')
    openssl('x509', '-req', '-in', path('request'), '-CA', path(f'{authority}.pem'), '-CAkey',
            path(f'{authority}.key'), '-CAcreateserial', '-days', '2', '-extfile', path('names'),
            '-out', path(f'{name}.pem'))


class TlsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        make_certificate('authority')
        make_certificate('another')
        make_certificate('server', 'authority')
        make_certificate('user', 'authority', 'DNS:user')
        make_certificate('stranger', 'another', 'DNS:user')
        cls.tls = {'tls_cert': path('server.pem'), 'tls_key': path('server.key')}

    def expect_unavailable(self, client, sentence):
        started = time.monotonic()
        with client, self.assertRaisesRegex(deeppcr.UnavailableError, sentence):
            client.models()
        self.assertLess(time.monotonic() - started, 20)
        with client:
            self.assertFalse(client.is_ready())

    def test_what_does_not_fit_is_told(self):
        authority = path('authority.pem')
        with serve(**self.tls) as server:
            with server.client(tls_ca=authority) as client:
                self.assertEqual(len(client.models()), 2)
                self.assertTrue(client.is_ready())
            self.expect_unavailable(server.client(), 'wants TLS: tls_ca')
            self.expect_unavailable(server.client(tls_ca=path('another.pem')),
                                    'not signed by one in tls_ca')
            self.expect_unavailable(deeppcr.Client(f'localhost:{server.grpc_port}', tls_ca=authority),
                                    'its certificate is for other names than this one')
        with serve() as server:
            self.expect_unavailable(server.client(tls_ca=authority), 'tls_ca is too much')

    def test_certificates_of_clients(self):
        authority = path('authority.pem')
        with serve(tls_client_ca=authority, **self.tls) as server:
            user = {'tls_cert': path('user.pem'), 'tls_key': path('user.key')}
            with server.client(tls_ca=authority, **user) as client:
                self.assertEqual(len(client.models()), 2)
            self.expect_unavailable(server.client(tls_ca=authority), 'wants certificates of clients')
            stranger = {'tls_cert': path('stranger.pem'), 'tls_key': path('stranger.key')}
            self.expect_unavailable(server.client(tls_ca=authority, **stranger),
                                    'does not know who signed tls_cert, or finds it out of date')

            async def awaited():
                async with deeppcr.aio.Client(server.address, tls_ca=authority) as client:
                    await client.models()

            with self.assertRaisesRegex(deeppcr.UnavailableError, 'wants certificates of clients'):
                asyncio.run(awaited())

    def test_files_are_read_before_anything_is_sent(self):
        authority, empty = path('authority.pem'), path('empty')
        pathlib.Path(empty).write_text('')
        subprocess.run(['openssl', 'ec', '-in', path('user.key'), '-aes128', '-passout', 'pass:secret',
                        '-out', path('locked.key')], check=True, capture_output=True)
        for kind in (deeppcr.Client, deeppcr.aio.Client):
            with self.assertRaisesRegex(FileNotFoundError, 'nothing.pem'):
                kind('localhost:1', tls_ca=path('nothing.pem'))
            for wrong in (empty, path('authority.key')):
                with self.assertRaisesRegex(ValueError, 'tls_ca: expected a file of PEM certificates'):
                    kind('localhost:1', tls_ca=wrong)
            for key in ('stranger.key', 'user.pem', 'locked.key'):
                with self.assertRaisesRegex(ValueError, 'tls_cert, tls_key: expected a PEM certificate'):
                    kind('localhost:1', tls_ca=authority, tls_cert=path('user.pem'), tls_key=path(key))


    def test_files_may_be_pipes_and_bundles_may_have_broken_parts(self):
        pipes = {}
        for name in ('authority.pem', 'user.pem', 'user.key'):
            pipes[name] = path(f'{name}.pipe')
            os.mkfifo(pipes[name])
            content = pathlib.Path(path(name)).read_bytes()
            threading.Thread(target=pathlib.Path(pipes[name]).write_bytes, args=(content,)).start()
        bundle = path('bundle.pem')
        authority = pathlib.Path(path('authority.pem')).read_text()
        pathlib.Path(bundle).write_text(f'Größe\n{authority}-----BEGIN CERTIFICATE-----\nAAAA\n'
                                        '-----END CERTIFICATE-----\n')
        with serve(tls_client_ca=path('authority.pem'), **self.tls) as server:
            with server.client(tls_ca=pipes['authority.pem'], tls_cert=pipes['user.pem'],
                               tls_key=pipes['user.key']) as client:
                self.assertEqual(len(client.models()), 2)
            with server.client(tls_ca=bundle, tls_cert=path('user.pem'),
                               tls_key=path('user.key')) as client:
                self.assertEqual(len(client.models()), 2)


class RestartTest(unittest.TestCase):

    def test_a_client_outlives_its_server(self):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(serve())
            client = stack.enter_context(first.client(timeout=120))
            policy = client.policy('digits-mlp', solver='newton')
            expected = np.array(client.forward('digits-mlp', X))
            action = np.array(policy.act(X))

            # So many samples that they are not all there when the first ones are under way.
            events = client.generate_events('digits-class', 200000, class_labels=[1],
                                            solver='sequential')
            self.assertIsInstance(next(events), deeppcr.Progress)
            os.kill(first._process.pid, signal.SIGKILL)
            with self.assertRaises(deeppcr.UnavailableError) as raised:
                list(events)
            self.assertIn(first.address, str(raised.exception))
            with self.assertRaises(deeppcr.UnavailableError):
                policy.act(X)

            stack.enter_context(serve(listen=first.address))
            end = time.monotonic() + 30
            while not client.is_ready() and time.monotonic() < end:
                time.sleep(0.05)
            np.testing.assert_array_equal(client.forward('digits-mlp', X), expected)
            np.testing.assert_allclose(policy.act(X), action, rtol=1e-3, atol=1e-3)

    def test_what_a_server_has_begun_it_answers_before_it_ends(self):
        with serve(batch_delay_seconds=0.5) as server, server.client() as client:
            with concurrent.futures.ThreadPoolExecutor() as threads:
                began = threads.submit(client.forward, 'digits-mlp', X)
                time.sleep(0.2)
                server.stop()
                self.assertEqual(began.result().shape, (2, 10))
            with self.assertRaisesRegex(deeppcr.UnavailableError, server.address):
                client.models()


class LoopTest(unittest.TestCase):
    """A notebook has one event loop, which runs while a cell does, and awaits between them."""

    def test_cells_of_a_notebook(self):
        with serve() as server, server.client() as client:
            loop = asyncio.new_event_loop()
            self.addCleanup(loop.close)
            kept = {}

            async def first_cell():
                kept['aio'] = deeppcr.aio.Client(server.address)
                kept['x'] = await kept['aio'].forward('digits-mlp', X)
                return client.forward('digits-mlp', X)  # blocks, and is no trouble to the loop

            async def second_cell():
                return await asyncio.gather(*[kept['aio'].forward('digits-mlp', X) for _ in range(8)])

            async def third_cell():
                seen = [event async for event in kept['aio'].generate_events('digits-class',
                                                                            class_labels=[1, 2])]
                await kept['aio'].close()
                return seen[-1], [*client.generate_events('digits-class', class_labels=[1, 2])][-1]

            np.testing.assert_array_equal(loop.run_until_complete(first_cell()), kept['x'])
            for each in loop.run_until_complete(second_cell()):
                np.testing.assert_array_equal(each, kept['x'])
            awaited, blocked = loop.run_until_complete(third_cell())
            np.testing.assert_array_equal(awaited, blocked)

    def test_a_client_is_of_one_loop(self):
        with serve() as server:
            client = deeppcr.aio.Client(server.address)
            asyncio.run(client.models())
            with self.assertRaisesRegex(RuntimeError, 'of another event loop'):
                asyncio.run(client.models())

    def test_a_cell_that_is_interrupted(self):
        with serve() as server:

            async def cell():
                async with deeppcr.aio.Client(server.address) as client:
                    running = asyncio.ensure_future(client.generate('digits-class', 200000,
                                                                    class_labels=[1]))
                    await asyncio.sleep(0.3)
                    running.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await running
                    return await client.forward('digits-mlp', X)

            self.assertEqual(asyncio.run(cell()).shape, (2, 10))


class Stub(grpc.GenericRpcHandler):
    """A server that answers every call of deeppcr.v1 with the same bytes."""

    def __init__(self, replies):
        self.replies = replies

    def service(self, call):
        reply = self.replies.get(call.method.rpartition('/')[2])
        if reply is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: reply)


@contextlib.contextmanager
def stub(**replies):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Stub(replies)])
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    try:
        with deeppcr.Client(f'127.0.0.1:{port}') as client:
            yield client
    finally:
        server.stop(None)


class VersionTest(unittest.TestCase):

    def test_a_server_that_is_older_refuses_what_it_does_not_know(self):
        with serve() as server, server.client() as client:
            request = protocol.message_class('ForwardRequest')(model='digits-mlp')
            request.inputs.shape.extend(X.shape)
            request.inputs.data = X.tobytes()
            newer = request.SerializeToString() + b'\xf8\x07\x01'  # field 127: 1
            call = client._channel.unary_unary(protocol.METHODS['Forward'].path)
            self.assertTrue(call(request.SerializeToString(), timeout=30))
            with self.assertRaisesRegex(deeppcr.InvalidArgumentError,
                                        'field 127 of deeppcr.v1.ForwardRequest is not known'):
                client._run(call, newer, client._deadline(None))
            call = client._channel.unary_unary('/deeppcr.v1.DeepPcr/Train')
            with self.assertRaisesRegex(deeppcr.UnimplementedError, 'of another version'):
                client._run(call, b'', client._deadline(None))

    def test_a_server_that_is_newer_may_say_more(self):
        message = protocol.message_class('ForwardResponse')()
        message.outputs.shape.extend([1, 2])
        message.outputs.data = np.float32([3, 4]).tobytes()
        sample = message.report.samples.add()
        sample.solver = sample.termination = 'of the year 2030'
        with stub(Forward=message.SerializeToString() + b'\xc2\x3e\x03abc') as client:
            result = client.forward('net', [0.0])
            np.testing.assert_array_equal(result, [[3, 4]])
            self.assertEqual(result.report.solver, 'of the year 2030')

    def test_replies_that_are_none(self):
        message = protocol.message_class('ForwardResponse')
        cut = message()
        cut.outputs.shape.extend([2, 2])
        cut.outputs.data = bytes(12)
        for reply in (b'\xff', b'<html>', cut.SerializeToString(), b''):
            with self.subTest(reply), stub(Forward=reply) as client:
                with self.assertRaises(deeppcr.InternalError):
                    client.forward('net', [0.0])

    def test_a_server_of_another_kind(self):
        with http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler) as web:
            threading.Thread(target=web.serve_forever, daemon=True).start()
            with deeppcr.Client(f'127.0.0.1:{web.server_port}', timeout=10) as client:
                self.assertFalse(client.is_ready())
                with self.assertRaises((deeppcr.UnavailableError, deeppcr.DeadlineExceededError)):
                    client.models()
            web.shutdown()
        with stub() as client, self.assertRaises(deeppcr.UnimplementedError):
            client.models()


if __name__ == '__main__':
    SERVER = sys.argv.pop(1)
    unittest.main()
