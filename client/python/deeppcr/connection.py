# SPDX-License-Identifier: Apache-2.0
"""Where a server is, and how it is called: what the sync and the async client have in common."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pathlib
import re
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

# deploy/README.md says what it does; a test holds the two together.
FLEET_SERVICE_CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": ""},
    "methodConfig": [
        {
            "name": [
                {"service": "deeppcr.v1.DeepPcr"},
                {"service": "inference.GRPCInferenceService"},
            ],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}

_MOST_REPLY_BYTES = 2047 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """An address as gRPC wants it."""

    text: str
    is_socket: bool = False
    is_loopback: bool = False
    is_fleet: bool = False


def _host_of(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        return ""
    bracketed = len(host) > 2 and host.startswith("[") and host.endswith("]")
    return host if bracketed or (host and not set(host) & set("/:[] \t\r\n")) else ""


def _ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def parse_server(server: str) -> Target:
    """host:port, unix:FILE, dns:///host:port, or IP addresses of one kind with ports, by commas."""
    if not isinstance(server, str):
        raise TypeError(f"server: expected a text, got a {type(server).__name__}")
    wrong = ValueError(
        "server: expected host:port with a port from 1 to 65535, unix:FILE, dns:///host:port, or "
        f"IP addresses of one kind with ports, by commas, got {server!r}"
    )
    if server.startswith("unix:"):
        if server == "unix:":
            raise wrong
        return Target(server, is_socket=True, is_loopback=True)
    if server.startswith("dns:///"):
        if not _host_of(server.removeprefix("dns:///")):
            raise wrong
        return Target(server, is_fleet=True)
    hosts = [_host_of(each) for each in server.split(",")]
    if not all(hosts):
        raise wrong
    ips = [_ip_of(host) for host in hosts]
    loopback = all(
        host == "localhost" or (ip is not None and ip.is_loopback)
        for host, ip in zip(hosts, ips, strict=True)
    )
    if len(hosts) == 1:
        return Target(server, is_loopback=loopback)
    kinds = {None if ip is None else ip.version for ip in ips}
    if kinds not in ({4}, {6}):
        raise wrong
    return Target(f"ipv{kinds.pop()}:{server}", is_loopback=loopback, is_fleet=True)


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """The path of a file that is in no folder."""
    descriptor = os.memfd_create("deeppcr")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Access:
    """Certificates and the token; none of them is sent in plain text to another machine."""

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token: str | None = None

    def check(self, target: Target) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key: expected both or none")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_cert, tls_key: expected tls_ca beside them, got none")
        if self.tls_ca is not None and target.is_socket:
            raise ValueError("tls_ca: expected none with a UNIX socket, which has no TLS")
        if self.token is None:
            return
        allowed = set("._~+/=-")
        if not 16 <= len(self.token) <= 512 or not all(
            c.isascii() and (c.isalnum() or c in allowed) for c in self.token
        ):
            raise ValueError(
                "token: expected 16 to 512 letters, digits and ._~+/=-, got something else"
            )
        if self.tls_ca is None and not target.is_loopback:
            raise ValueError(
                f"token: expected tls_ca beside it, since {target.text} is another "
                "machine and the token would be sent in plain text"
            )

    def credentials(self) -> Any:
        """None without TLS."""
        if self.tls_ca is None:
            return None

        def read(path: str | None) -> bytes | None:
            return None if path is None else pathlib.Path(path).read_bytes()

        authority, key, certificate = read(self.tls_ca), read(self.tls_key), read(self.tls_cert)
        assert authority is not None
        self._check(authority, key, certificate)
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def _check(self, authority: bytes, key: bytes | None, certificate: bytes | None) -> None:
        """Tells here what gRPC would tell as a server that is not reached."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_ciphers("DEFAULT@SECLEVEL=0")  # how long keys are is the server's to judge
        for block in re.findall(rb"-----BEGIN .*?-----END [^\n]*", authority, re.DOTALL):
            with contextlib.suppress(ssl.SSLError, ValueError):
                context.load_verify_locations(cadata=block.decode("ascii"))
        if not context.cert_store_stats()["x509"]:
            raise ValueError(f"tls_ca: expected a file of PEM certificates, got {self.tls_ca}")
        if key is None or certificate is None or not hasattr(os, "memfd_create"):
            return
        # Copies in memory, as the files may be pipes, which are read once.
        with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
            try:
                context.load_cert_chain(certificate_path, key_path, password="")
            except ssl.SSLError as error:
                raise ValueError(
                    "tls_cert, tls_key: expected a PEM certificate and its key, without a "
                    f"password, got {self.tls_cert} and {self.tls_key} ({error.reason or error})"
                ) from None

    def advice(self, details: str) -> str:
        """What is wrong where gRPC says these details of a connection; empty if that is all."""
        if "CERTIFICATE_VERIFY_FAILED" in details:
            return "its certificate is out of date, or is not signed by one in tls_ca"
        if "Hostname Verification" in details or "is not in peer certificate" in details:
            return "its certificate is for other names than this one"
        if "WRONG_VERSION_NUMBER" in details:
            return "it speaks plain text, so that tls_ca is too much"
        if "failed to connect" not in details or "Socket closed" not in details:
            return ""
        ended = "it ended the connection, as one does that has as many as it takes, or that"
        if self.tls_ca is None:
            return f"{ended} wants TLS: tls_ca"
        if self.tls_cert is None:
            return f"{ended} wants certificates of clients: tls_cert"
        return f"{ended} does not know who signed tls_cert, or finds it out of date"


def channel_options(target: Target, *, is_secure: bool) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", _MOST_REPLY_BYTES),
        ("grpc.max_send_message_length", -1),  # the server has a limit of its own, and says it
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # A little more than the least that servers allow.
        ("grpc.keepalive_time_ms", 310000),
        ("grpc.keepalive_timeout_ms", 20000),
        # A channel of its own, also beside another to the same server.
        ("deeppcr.connection", secrets.token_hex(8)),
    ]
    if target.is_loopback or not is_secure:
        # A proxy would be another machine, and would read what is sent.
        options.append(("grpc.enable_http_proxy", 0))
    if target.is_fleet:
        options.append(("grpc.service_config", json.dumps(FLEET_SERVICE_CONFIG)))
    return options


def metadata_of(access: Access) -> tuple[list[tuple[str, str]], str]:
    """(metadata of a call, its trace id): the id is that of x-request-id too."""
    trace_id = secrets.token_hex(16)
    metadata = [
        ("x-request-id", trace_id),
        ("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-00"),
    ]
    if access.token is not None:
        metadata.append(("authorization", f"Bearer {access.token}"))
    return metadata, trace_id
