"""Where a broker is: the address unless somebody says otherwise, and what an address may look like.

ZeroMQ reads addresses leniently (port 80x is 80 to it), so every address is checked here before ZeroMQ sees it.
"""

from __future__ import annotations

import ipaddress
import re

from clarion.model.errors import BadSettings

DEFAULT_URL = "tcp://127.0.0.1:5590"
_TCP = re.compile(r"tcp://(?P<host>\[[^\[\]]+\]|[^\[\]:]+):(?P<port>\*|[0-9]{1,5})", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?", re.ASCII)  # or a network interface
_NUMBERS = re.compile(r"(?:.*\.)?[0-9]+", re.ASCII)  # how no name ends, only an IPv4 address
_IPC_PATH_BYTES = 107  # what the system's own addresses have room for


def check_connect(url: object) -> str:
    """Return an address to connect to as it is: tcp://HOST:PORT or ipc://PATH; what is none raises BadSettings."""
    return _checked(url, "an address to connect to", listening=False)


def check_listen(url: object) -> str:
    """Return an address to listen on as it is: as for `check_connect`, and * stands for every interface, any port."""
    return _checked(url, "an address to listen on", listening=True)


def _checked(url: object, what: str, *, listening: bool) -> str:
    if isinstance(url, str) and (_is_tcp(url, listening=listening) or _is_ipc(url)):
        return url
    more = ", tcp://*:5590 (every interface), tcp://127.0.0.1:* (any port)" if listening else ""
    raise BadSettings(f"{url!r} is not {what}; one looks like {DEFAULT_URL}{more} or ipc:///run/clarion.sock")


def _is_tcp(url: str, *, listening: bool) -> bool:
    found = _TCP.fullmatch(url)
    if found is None:
        return False
    port = 0 if found["port"] == "*" else int(found["port"])
    return (0 if listening else 1) <= port <= 65_535 and _is_host(found["host"], listening=listening)


def _is_host(host: str, *, listening: bool) -> bool:
    if host == "*":
        return listening
    if not host.startswith("[") and not _NUMBERS.fullmatch(host):
        return _HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host[1:-1]) if host.startswith("[") else ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_ipc(url: str) -> bool:
    path = url.removeprefix("ipc://")
    return path != url and 0 < len(path.encode(errors="replace")) <= _IPC_PATH_BYTES and "\0" not in path
