"""Which addresses may be connected to."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.feeds.addresses import AddressRules
from clarion.model.errors import BadSettings

forbidden = AddressRules().forbidden


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "223.255.255.255", "2606:4700::1111", "2a00::1"]
)
def test_the_public_internet_may_be_reached(address: str) -> None:
    assert forbidden(address) is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("10.255.0.1", "private"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("100.127.255.255", "carrier-grade NAT"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("168.63.129.16", "a cloud's own services"),
        ("169.254.169.254", "link-local"),
        ("172.31.255.255", "private"),
        ("192.0.0.192", "reserved"),
        ("192.0.2.1", "documentation"),
        ("192.168.1.1", "private"),
        ("198.19.255.255", "benchmarking"),
        ("198.51.100.1", "documentation"),
        ("203.0.113.1", "documentation"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("2001:2::1", "benchmarking"),
        ("2001:20::1", "reserved"),
        ("100::1", "reserved"),
        ("5f00::1", "reserved"),
        ("4000::1", "reserved"),
    ],
)
def test_what_is_no_public_address_is_refused_with_its_reason(address: str, reason: str) -> None:
    assert forbidden(address) == reason


@given(st.integers(0, 2**32 - 1))
def test_no_ipv6_address_with_an_ipv4_address_within_is_reached_whatever_it_is(number: int) -> None:
    high, low = number >> 16, number & 0xFFFF
    dotted = str(IPv4Address(number))
    for address in (
        f"::ffff:{dotted}",
        f"::ffff:0:{dotted}",
        f"64:ff9b::{dotted}",
        f"64:ff9b:1::{dotted}",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:1:2:3:4:{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",
        f"2a00:1:2:3:0:5efe:{high:x}:{low:x}",
        f"2a00:1:2:3:200:5efe:{high:x}:{low:x}",
    ):
        assert forbidden(address) == "an embedded IPv4 address"
    assert forbidden(f"::{dotted}") is not None
    assert AddressRules(["0.0.0.0/0"]).forbidden(f"::ffff:{dotted}")


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "2130706433", "0x7f.1", "127.0.0.1.", "010.0.0.1", "1.1.1.1 "]
)
def test_what_is_not_an_address_in_its_one_form_is_refused(text: str) -> None:
    assert forbidden(text) == "not an IP address"


def test_what_is_allowed_may_be_reached_and_nothing_beside_it() -> None:
    rules = AddressRules(["127.0.0.0/8", "10.1.2.3", "10.1.2.4:8080", "[fd00::1]:80", "::1"])
    for address, port, reached in (
        ("127.9.9.9", 80, True),
        ("10.1.2.3", 1, True),
        ("10.1.2.4", 8080, True),
        ("10.1.2.4", 80, False),
        ("10.1.2.5", 8080, False),
        ("fd00::1", 80, True),
        ("fd00::1", 81, False),
        ("::1", 5, True),
        ("::ffff:127.0.0.1", 80, False),
        ("1.1.1.1", 80, True),
    ):
        assert (rules.forbidden(address, port) is None) is reached, address


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0.1/8", "10.0.0.1:0", "10.0.0.1:x", "[::1]:99999", "*"])
def test_what_cannot_be_allowed_is_told(text: str) -> None:
    with pytest.raises(BadSettings, match="neither an address nor a network"):
        AddressRules([text])
