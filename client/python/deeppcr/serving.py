# SPDX-License-Identifier: Apache-2.0
"""Runs a server as a child of this process."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import weakref
from typing import Any

from typing_extensions import Self

from deeppcr.client import Client
from deeppcr.errors import DeepPcrError

HOW_TO_GET_IT = """no deeppcr-server was found: not by the argument binary, not in
DEEPPCR_SERVER_BINARY, not on PATH, not in the package deeppcr_server and not in a build folder of a
checkout. `deploy/build.sh` in a checkout of DeepPCR Serve builds one, deploy/wheels.sh then makes
wheels that `pip install build/wheels/deeppcr*.whl` takes."""


class ServerError(DeepPcrError):
    """The server ended, or did not start; the message has the last lines of its log."""


def server_at_hand(binary: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """The argument, DEEPPCR_SERVER_BINARY, PATH, deeppcr_server, or the build of a checkout.

    None if there is none. Errors: FileNotFoundError if one is named that is not there,
    PermissionError if it cannot be run.
    """
    for named in (binary, os.environ.get("DEEPPCR_SERVER_BINARY")):
        if named:
            path = pathlib.Path(named)
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such server")
            if not os.access(path, os.X_OK):
                raise PermissionError(f"{path}: expected a server, and it cannot be executed")
            return path
    on_path = shutil.which("deeppcr-server")
    if on_path:
        return pathlib.Path(on_path)
    if importlib.util.find_spec("deeppcr_server") is not None:
        import deeppcr_server

        # A checkout has the package without what is built into it.
        if pathlib.Path(deeppcr_server.BINARY).is_file():
            return pathlib.Path(deeppcr_server.BINARY)
    for folder in pathlib.Path(__file__).resolve().parents:
        for preset in ("release", "test"):
            path = folder / "build" / preset / "server" / "deeppcr-server"
            if path.is_file():
                return path
    return None


def find_server(binary: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """As server_at_hand. Errors: FileNotFoundError if there is none, with how to get one."""
    found = server_at_hand(binary)
    if found is None:
        raise FileNotFoundError(HOW_TO_GET_IT)
    return found


def _end(
    process: subprocess.Popen[bytes],
    folder: tempfile.TemporaryDirectory[str],
    owner: int,
    seconds: float,
) -> None:
    if os.getpid() != owner:
        return  # a fork, whose server it is not
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _clear(process, folder)


def _clear(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    """What a server that has ended leaves. Its input ends after it: it would stop at that too."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(OSError):
        folder.cleanup()


class Server:
    """A server on free ports of this machine, until it is stopped.

    It is stopped too when nothing refers to this object any more, and when this process ends,
    however it does; forks that outlive a process which is killed keep its server.

    with deeppcr.serve("models") as server:
        print(server.client().forward("net", x))
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: tempfile.TemporaryDirectory[str],
        ports: dict[str, Any],
    ) -> None:
        self._process, self._folder = process, folder
        self.grpc_port: int = ports["grpc_port"]
        self.http_port: int = ports["http_port"]
        self.address = f"127.0.0.1:{self.grpc_port}"
        self._finalizer = weakref.finalize(self, _end, process, folder, os.getpid(), 40.0)

    def client(self, **options: Any) -> Client:
        """One that keeps the server: it ends after the last of them, if nobody stops it before."""
        client = Client(self.address, **options)
        client.kept = self
        return client

    @property
    def log(self) -> str:
        return _log_in(self._folder)

    def stop(self, seconds: float = 40.0) -> None:
        """Has it answer what it has begun, and end; kills it after so many seconds."""
        if self._finalizer.detach() is not None:
            _end(self._process, self._folder, os.getpid(), seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<deeppcr.Server at {self.address}, process {self._process.pid}>"


def _log_in(folder: tempfile.TemporaryDirectory[str]) -> str:
    return (pathlib.Path(folder.name) / "log").read_text(errors="replace")


def _last_lines(folder: tempfile.TemporaryDirectory[str]) -> str:
    return "\n".join(_log_in(folder).splitlines()[-12:])


def serve(
    models: str | os.PathLike[str] | None = None,
    *,
    model_dir: str | os.PathLike[str] | None = None,
    model_name: str = "",
    binary: str | os.PathLike[str] | None = None,
    start_seconds: float = 300.0,
    **flags: Any,
) -> Server:
    """Starts a server and waits until it is ready.

    models: a folder of models, each with its versions. model_dir, model_name: one model alone.
    flags: those of the server, as gradients=True or max_queue=64; `deeppcr-server --help` has them.
    """
    if (models is None) == (model_dir is None):
        raise ValueError("serve: expected models, or model_dir with model_name")
    for name in ("port_file", "stop_with_stdin"):
        if name in flags:
            raise ValueError(f"{name}: expected none, as this function has a use for it")
    if str(flags.get("listen", "")).startswith("unix:"):
        raise ValueError("listen: expected host:port; a UNIX socket beside it is socket=FILE")
    server_binary = find_server(binary)
    folder = tempfile.TemporaryDirectory(prefix="deeppcr-")
    port_file = pathlib.Path(folder.name) / "ports.json"
    settings: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "http_listen": "127.0.0.1:0",
        "port_file": port_file,
        "stop_with_stdin": True,
    }
    if models is not None:
        settings["model_repository"] = os.fspath(models)
    elif model_dir is not None:
        settings |= {"model_dir": os.fspath(model_dir), "model_name": model_name}
    settings |= flags
    arguments = [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in settings.items()
    ]
    with (pathlib.Path(folder.name) / "log").open("wb") as log:
        # A group of its own, so that an interrupt at the keyboard is this process' to handle.
        process = subprocess.Popen(
            [str(server_binary), *arguments],
            stdin=subprocess.PIPE,  # which ends with this process
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        ports = _await_ports(process, port_file, folder, start_seconds)
    except BaseException:
        process.kill()
        process.wait()
        _clear(process, folder)
        raise
    return Server(process, folder, ports)


def _await_ports(
    process: subprocess.Popen[bytes],
    port_file: pathlib.Path,
    folder: tempfile.TemporaryDirectory[str],
    seconds: float,
) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while not port_file.is_file():
        if process.poll() is not None:
            binary = process.args[0]  # type: ignore[index]
            lines = _last_lines(folder)
            if 'flag "--stop_with_stdin' in lines:
                lines += f"\n({binary!r} is older than this package)"
            raise ServerError(f"the server ended with status {process.returncode}:\n{lines}")
        if time.monotonic() > end:
            raise ServerError(f"the server is not ready after {seconds} s:\n{_last_lines(folder)}")
        time.sleep(0.02)
    ports: dict[str, Any] = json.loads(port_file.read_text())
    if not ports["ready"]:
        raise ServerError(f"a model could not be loaded:\n{_last_lines(folder)}")
    return ports
