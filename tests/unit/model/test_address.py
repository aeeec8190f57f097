"""Addresses are read strictly: what ZeroMQ would take for another one, or never reach, is refused before."""

from __future__ import annotations

from typing import Any

import pytest

from clarion import Admin, AsyncSubscriber, Publisher, Stager, Subscriber
from clarion.model.address import check_connect, check_listen
from clarion.model.errors import BadSettings

_BOTH = [
    "tcp://127.0.0.1:5590",
    "tcp://localhost:1",
    "tcp://broker-1.example.org:65535",
    "tcp://broker_1:5590",
    "tcp://[::1]:5590",
    "tcp://[fe80::1%eth0]:5590",
    "ipc:///run/clarion.sock",
    "ipc://@clarion",
    "ipc://relative path",
]
_LISTENING = ["tcp://*:5590", "tcp://127.0.0.1:*", "tcp://*:*", "tcp://127.0.0.1:0", "tcp://eth0:5590", "ipc://*"]
_NEITHER: list[Any] = [
    "tcp://127.0.0.1:80x",
    "tcp://127.0.0.1:x80",
    "tcp://127.0.0.1: 80",
    "tcp://127.0.0.1:80 ",
    " tcp://127.0.0.1:80",
    "tcp://127.0.0.1:80/",
    "tcp://127.0.0.1:80/path",
    "tcp://127.0.0.1:+80",
    "tcp://127.0.0.1:٨٠",
    "tcp://127.0.0.1:65536",
    "tcp://127.0.0.1:-1",
    "tcp://127.0.0.1:",
    "tcp://127.0.0.1",
    "tcp://127.0.0.1:5590;",
    "tcp://127.0.0.1.1:5590",
    "tcp://256.0.0.1:5590",
    "tcp://127.1:5590",
    "tcp://:5590",
    "tcp://5590",
    "tcp://::1:5590",
    "tcp://[::1:5590",
    "tcp://[localhost]:5590",
    "tcp://-a:5590",
    "tcp://a b:5590",
    "tcp://bröker:5590",
    "tcp://user@host:5590",
    "TCP://127.0.0.1:5590",
    "udp://127.0.0.1:5590",
    "http://127.0.0.1:5590",
    "inproc://clarion",
    "127.0.0.1:5590",
    "nowhere",
    "",
    "ipc://",
    "ipc://" + "x" * 108,
    "ipc:///run/cla\0rion",
    b"tcp://127.0.0.1:5590",
    None,
    5590,
]


@pytest.mark.parametrize("url", _BOTH)
def test_an_address_is_taken_as_it_is(url: str) -> None:
    assert check_connect(url) == check_listen(url) == url


@pytest.mark.parametrize("url", _LISTENING)
def test_any_port_and_every_interface_are_for_listening_alone(url: str) -> None:
    assert check_listen(url) == url
    if not url.startswith(("ipc:", "tcp://eth0")):
        with pytest.raises(BadSettings, match="not an address to connect to"):
            check_connect(url)


@pytest.mark.parametrize("url", _NEITHER)
def test_what_is_no_address_is_refused(url: Any) -> None:
    for check in (check_connect, check_listen):
        with pytest.raises(BadSettings, match=r"looks like tcp://127\.0\.0\.1:5590"):
            check(url)


@pytest.mark.parametrize(
    ("client", "more"),
    [(Publisher, {}), (Subscriber, {"name": "reader"}), (Admin, {}), (Stager, {"writer": "w", "epoch": 1})],
)
def test_every_client_refuses_it_at_once(client: Any, more: dict[str, Any]) -> None:
    with pytest.raises(BadSettings, match="80x"):
        client("tcp://127.0.0.1:80x", **more)


async def _make_async() -> None:
    AsyncSubscriber("tcp://127.0.0.1:80x", name="reader")


def test_so_do_those_for_asyncio() -> None:
    import asyncio

    with pytest.raises(BadSettings, match="80x"):
        asyncio.run(_make_async())
