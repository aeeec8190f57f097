"""Addresses: which ones a node may connect to. Whoever subscribes names a URL, and none may reach what is inside."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from clarion.model.errors import BadSettings

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# The registries of special addresses, as of 2026 (IANA, RFC 6890), said here once: what `ipaddress` takes for global
# differs between versions of Python. The first that holds an address is the reason told.
_V4 = [
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's own services"),
        ("169.254.0.0/16", "link-local"),  # a cloud's metadata
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),  # relays of 6to4
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_V6 = [
    (IPv6Network(network), reason)
    for network, reason in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "an embedded IPv4 address"),  # mapped
        ("::ffff:0:0:0/96", "an embedded IPv4 address"),  # translated
        ("::/96", "an embedded IPv4 address"),  # compatible
        ("64:ff9b::/96", "an embedded IPv4 address"),  # NAT64
        ("64:ff9b:1::/48", "an embedded IPv4 address"),
        ("2001::/32", "an embedded IPv4 address"),  # Teredo
        ("2002::/16", "an embedded IPv4 address"),  # 6to4
        ("2001:2::/48", "benchmarking"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2001::/23", "reserved"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
]
_V6_UNICAST = IPv6Network("2000::/3")
_ISATAP = 0x00005EFE  # the upper half of an interface's identifier, but for one bit


class AddressRules:
    """Which addresses may be connected to: those of the public internet, and those in `allow`.

    Each of `allow` is a network or an address (`127.0.0.0/8`, `10.1.2.3`, `fd00::/8`), with a port or without
    (`10.1.2.3:8080`, `[::1]:8080`). An IPv6 address with an IPv4 address within is only allowed as what it is.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = [_read_allowed(text) for text in allow]

    def forbidden(self, address: str, port: int | None = None) -> str | None:
        """Return why this address must not be connected to, or None where it may."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return "not an IP address"
        if any(
            parsed.version == network.version and parsed in network and only in (None, port)
            for network, only in self._allowed
        ):
            return None
        return _reason_v4(parsed) if isinstance(parsed, IPv4Address) else _reason_v6(parsed)


def _reason_v4(address: IPv4Address) -> str | None:
    return next((reason for network, reason in _V4 if address in network), None)


def _reason_v6(address: IPv6Address) -> str | None:
    for network, reason in _V6:
        if address in network:
            return reason
    if address not in _V6_UNICAST:
        return "reserved"
    if (int(address) >> 32) & 0xFDFFFFFF == _ISATAP:
        return "an embedded IPv4 address"
    return None


def _read_allowed(text: str) -> tuple[Network, int | None]:
    """Return a network and the one port of it that is allowed, or None for all; BadSettings where it is neither."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    try:
        if port and not (port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"{port!r} is no port")
        return ip_network(host), int(port) if port else None
    except ValueError as error:
        raise BadSettings(
            f"{text!r} is neither an address nor a network: {error}; as 127.0.0.0/8, 10.1.2.3 or 10.1.2.3:8080"
        ) from None
