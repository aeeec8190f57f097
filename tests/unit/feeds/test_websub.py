"""What a WebSub subscriber asks of hubs, and what it tells them."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from clarion.feeds.fetcher import Fetched
from clarion.feeds.websub import Answer, HubOffer, SignatureCheck, WebSubTable, offer_of
from clarion.model.errors import BadSettings

URL = "https://example.org/feed"
OFFER = HubOffer("https://hub.example/", "https://example.org/self")
DAY_S = 86_400.0


def table() -> WebSubTable:
    """Return a table that wants one channel, and has asked for it."""
    made = WebSubTable("https://node.example/hooks/")
    made.want(URL, OFFER, "token", "secret", 0.0)
    assert len(made.due(0.0)) == 1
    return made


def question(mode: str = "subscribe", **more: str) -> dict[str, str]:
    """Return what a hub asks."""
    asked = {"hub.mode": mode, "hub.topic": OFFER.topic, "hub.challenge": "abc"}
    return asked | {name.replace("hub_", "hub."): value for name, value in more.items()}


def signature(secret: str, body: bytes, method: str) -> str:
    return f"{method}={hmac.new(secret.encode(), body, getattr(hashlib, method)).hexdigest()}"


def test_a_hub_is_named_by_headers_or_else_by_the_body() -> None:
    body = b'<feed><link rel="hub" href="/h"/><link rel="self" href="/s"/></feed>'
    by_header = Fetched(status=200, url=URL, body=body, hubs=("https://hub.example/", "https://b.example/"))
    assert offer_of(by_header) == HubOffer("https://hub.example/", URL)
    by_body = Fetched(status=200, url=URL, body=body)
    assert offer_of(by_body) == HubOffer("https://example.org/h", "https://example.org/s")
    assert offer_of(Fetched(status=200, url=URL, body=b"<feed/>")) is None


def test_a_request_says_what_is_wanted_and_is_made_once() -> None:
    made = WebSubTable("https://node.example/hooks/")
    made.want(URL, OFFER, "token", "secret", 0.0)
    made.want(URL, OFFER, "other", "other", 0.0)
    (request,) = made.due(0.0)
    assert (request.url, request.hub) == (URL, OFFER.hub)
    assert request.form == {
        "hub.mode": "subscribe",
        "hub.topic": OFFER.topic,
        "hub.callback": "https://node.example/hooks/token",
        "hub.secret": "secret",
        "hub.lease_seconds": "864000",
    }
    assert made.due(1.0) == []


def test_a_request_of_ours_is_confirmed_with_its_challenge() -> None:
    made = table()
    assert not made.covered(URL, 1.0)
    assert made.on_verification("token", question(), 1.0) == Answer(200, "abc")
    assert made.covered(URL, 2.0)


@pytest.mark.parametrize(
    ("token", "asked"),
    [
        ("guessed", question()),
        ("", question()),
        ("token", question("unsubscribe")),
        ("token", question("publish")),
        ("token", question(hub_topic="https://example.org/other")),
        ("token", question(hub_challenge="")),
        ("token", question(hub_challenge="x" * 5000)),
        ("token", {}),
    ],
)
def test_nothing_else_is_confirmed(token: str, asked: dict[str, str]) -> None:
    made = table()
    assert made.on_verification(token, asked, 1.0) == Answer(404)
    assert not made.covered(URL, 1.0)


def test_a_lease_is_renewed_before_it_ends() -> None:
    made = table()
    made.on_verification("token", question(hub_lease_seconds="3000"), 0.0)
    assert made.due(1999.0) == []
    assert [request.form["hub.mode"] for request in made.due(2000.0)] == ["subscribe"]
    assert made.covered(URL, 2999.0)
    assert not made.covered(URL, 3000.0)


@pytest.mark.parametrize("lease", ["0", "-5", "99999999999999", "soon", "\u0661"])
def test_a_strange_lease_does_no_harm(lease: str) -> None:
    made = table()
    assert made.on_verification("token", question(hub_lease_seconds=lease), 0.0).status == 200
    assert made.due(299.0) == []
    assert made.due(30 * DAY_S)


def test_a_hub_that_does_not_confirm_is_asked_less_and_less() -> None:
    made, times = table(), []
    for minute in range(2 * 24 * 60):
        times += [minute for _ in made.due(60.0 * minute)]
    assert times[:5] == [15, 45, 105, 225, 465]
    assert len(times) == 7


def test_a_hub_that_denies_is_left_alone_for_a_day() -> None:
    made = table()
    assert made.on_verification("token", question("denied"), 10.0) == Answer(200)
    assert not made.covered(URL, 10.0)
    assert made.due(DAY_S) == []
    assert len(made.due(DAY_S + 10.0)) == 1


def test_what_is_left_is_said_so_and_no_notice_is_taken_any_more() -> None:
    made = table()
    made.on_verification("token", question(), 0.0)
    made.leave(URL, 5.0)
    assert [request.form["hub.mode"] for request in made.due(5.0)] == ["unsubscribe"]
    assert made.check("token", "") is None
    assert made.on_notice("token", 6.0) is None
    assert made.on_verification("token", question(), 6.0) == Answer(404)
    assert made.on_verification("token", question("unsubscribe"), 6.0) == Answer(200, "abc")
    assert made.on_verification("token", question("unsubscribe"), 7.0) == Answer(404)
    assert made.due(100 * DAY_S) == []


def test_another_hub_replaces_the_first() -> None:
    made = table()
    made.on_verification("token", question(), 0.0)
    made.want(URL, HubOffer("https://new.example/", OFFER.topic), "next", "s", 1.0)
    assert {(request.hub, request.form["hub.mode"]) for request in made.due(1.0)} == {
        ("https://hub.example/", "unsubscribe"),
        ("https://new.example/", "subscribe"),
    }


def test_notices_of_a_channel_that_come_together_are_one_poll_and_a_later_one() -> None:
    made = table()
    assert made.on_notice("token", 100.0) == (URL, 0.0)
    assert made.on_notice("token", 101.0) == (URL, 9.0)
    assert [made.on_notice("token", 101.0 + n / 1000) for n in range(1000)] == [None] * 1000
    assert made.on_notice("token", 200.0) == (URL, 0.0)


@pytest.mark.parametrize("method", ["sha1", "sha256", "sha384", "sha512"])
def test_a_signature_of_each_method_holds_for_its_body_and_secret_only(method: str) -> None:
    signed = signature("secret", b"a body", method)
    for secret, header, pieces, holds in (
        ("secret", signed, [b"a ", b"body"], True),
        ("secret", signed.upper(), [b"a body"], True),
        ("secret", signed, [b"another"], False),
        ("other", signed, [b"a body"], False),
        ("secret", signed[:-1], [b"a body"], False),
    ):
        check = SignatureCheck(secret, header)
        for piece in pieces:
            check.update(piece)
        assert check.holds() is holds


@pytest.mark.parametrize("header", ["", "=", "sha256", "sha256=", "md5=1234", "new=1", "sha256=\u00e9", "blake2b=00"])
def test_what_is_no_signature_does_not_hold(header: str) -> None:
    check = SignatureCheck("secret", header)
    check.update(b"a body")
    assert not check.holds()


def test_a_callback_must_be_a_url() -> None:
    with pytest.raises(BadSettings, match="https://HOST/PATH"):
        WebSubTable("node.example")
