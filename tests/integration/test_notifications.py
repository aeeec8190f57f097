"""Notifications: what changed is sent to targets, at least once, and no target holds up another or leads inside."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.integration.shell import run, running, stop
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher
from clarion.feeds.addresses import AddressRules
from clarion.feeds.channels import channel_topic
from clarion.feeds.deltas import Change, Delta, encode_delta
from clarion.feeds.feed_deliveries import ATTEMPTS, DeliverySettings
from clarion.feeds.front_end import Feeds
from clarion.feeds.notify import BadTarget, Notifier, forget_target, keep_target, target_name

_SOON = DeliverySettings(look_every_s=0.1, first_retry_s=0.0001)
_INSIDE = AddressRules(["127.0.0.0/8"])


class Receiver(ThreadingHTTPServer):
    """A web hook: /ok takes what comes, /bad does not, /hang never answers, and /move sends it to another's /ok."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.ended = threading.Event()
        self.moves_to = ""

    def url(self, path: str) -> str:
        return f"json://me:secret@127.0.0.1:{self.server_port}/{path}"

    def messages(self, path: str) -> list[str]:
        return [told["message"] for at, told in self.got if at == path]


class _Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        if self.path == "/hang":
            self.server.ended.wait()
        self.send_response({"/bad": 500, "/move": 307}.get(self.path, 200))
        if self.path == "/move":
            self.send_header("Location", self.server.moves_to)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    yield server
    server.ended.set()
    server.shutdown()
    serving.join()
    server.server_close()


def _follow(url: str, page: str, target: str) -> None:
    with Feeds(url) as feeds:
        assert feeds.subscribe(page, keep_target(url, target), max_attempts=ATTEMPTS).is_new


def _put(url: str, page: str, version: int, title: str) -> None:
    change = Change(kind="new", title=title, link=f"{page}#{version}")
    delta = Delta(url=page, version=version, kind="delta", form="feed", title="A page", changes=(change,))
    with Publisher(url) as publisher:
        publisher.put(channel_topic(page), encode_delta(delta)).result(DEADLINE_S)


def _notify(
    url: str, done: Callable[[Notifier], Any], rules: AddressRules | None = _INSIDE, notifiers: int = 1
) -> None:
    """Run notifiers until something is so of the last of them."""

    async def run() -> None:
        all_of_them = [Notifier(url, rules, _SOON) for _ in range(notifiers)]
        running = [asyncio.create_task(one.run()) for one in all_of_them]
        try:
            await asyncio.to_thread(eventually, lambda: done(all_of_them[-1]), "notified")
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(run())


def _lag(url: str, page: str, target: str) -> int:
    with Admin(url) as admin:
        return admin.describe_subscription(channel_topic(page), target_name(target)).lag


def test_what_waits_is_gathered_in_one_message_and_sent_once(receiver: Receiver, url: str) -> None:
    one, other, target = "http://example.org/one", "http://example.org/other", receiver.url("ok")
    for page in (one, other):
        _follow(url, page, target)
    _put(url, one, 1, "Rain")
    _put(url, other, 1, "Wind <b>")
    _put(url, one, 2, "Snow")
    _notify(url, lambda _: not _lag(url, one, target) and not _lag(url, other, target), notifiers=2)
    texts = receiver.messages("/ok")
    assert "".join(texts).count("+ ") == 3
    assert all(text in "".join(texts) for text in ("+ Rain", "+ Wind <b>", "+ Snow"))
    _put(url, one, 3, "Hail")
    _notify(url, lambda _: not _lag(url, one, target))
    assert receiver.messages("/ok")[len(texts) :] == [
        "A page: 1 new\n+ Hail\n  http://example.org/one#3\nhttp://example.org/one"
    ]


def test_a_target_that_fails_and_one_that_hangs_hold_up_no_other_and_end_as_dead_letters(
    receiver: Receiver, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = "http://example.org/trouble"
    caplog.set_level(logging.INFO)
    for path in ("bad", "hang", "ok"):
        _follow(url, page, receiver.url(path))
    _put(url, page, 1, "Rain")
    with Admin(url) as admin:
        _notify(url, lambda _: admin.dead_letters(channel_topic(page)) and not _lag(url, page, receiver.url("ok")))
        (dead,) = admin.dead_letters(channel_topic(page))
    assert (dead.subscription.decode(), dead.attempts) == (target_name(receiver.url("bad")), ATTEMPTS)
    assert len(receiver.messages("/ok")) == 1
    attempts = receiver.messages("/bad")
    assert len(attempts) == ATTEMPTS
    assert "attempt 8: some of this may have come before" in attempts[-1]
    assert _lag(url, page, receiver.url("hang")) == 1  # kept, for the next attempt
    assert "Internal server error" in dead.reason
    assert "not delivered" in caplog.text
    assert "secret" not in caplog.text + dead.reason


@pytest.mark.parametrize("path", ["ok", "move"])
def test_no_notification_reaches_an_address_that_is_not_allowed(receiver: Receiver, url: str, path: str) -> None:
    page = f"http://example.org/inside-{path}"
    receiver.moves_to = f"http://127.0.0.2:{receiver.server_port}/ok"
    _follow(url, page, receiver.url(path) + "?redirect=yes")
    _put(url, page, 1, "Rain")
    rules = None if path == "ok" else AddressRules(["127.0.0.1"])
    _notify(url, lambda notifier: notifier.deliveries.failed, rules)
    assert receiver.messages("/ok") == []
    assert len(receiver.messages("/move")) == (path == "move")


def test_a_target_that_follows_nothing_any_more_is_forgotten(receiver: Receiver, url: str) -> None:
    one, other, target = "http://example.org/kept", "http://example.org/too", receiver.url("ok")
    for page in (one, other):
        _follow(url, page, target)
    state = "clarion/feeds/targets/" + target_name(target).removeprefix("notify/")
    with Admin(url) as admin, Feeds(url) as feeds:
        assert feeds.unsubscribe(one, target_name(target))
        assert not forget_target(url, target)
        assert admin.state(state).value == target.encode()
        assert feeds.unsubscribe(other, target_name(target))
        assert forget_target(url, target)
        assert admin.state(state).value is None


@pytest.mark.parametrize(
    "target",
    [
        "nonsense://secret",
        "tgram://secret",
        "json://",
        "json://[::1",
        "https",
        "workflows://h/w/secret?template=/secret",
        "x" * 5000,
    ],
)
def test_what_is_no_target_is_refused_and_its_secrets_are_not_told(
    url: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadTarget) as told:
        keep_target(url, target)
    assert "secret" not in str(told.value) + caplog.text


def test_a_target_follows_and_gives_up_by_the_command_line(receiver: Receiver, url: str) -> None:
    page, target = "http://127.0.0.1:1/page", receiver.url("ok")
    done = run("feeds", "subscribe", page, "--notify", target, CLARION_URL=url)
    assert done.stdout.decode() == f"json://me:****@127.0.0.1:{receiver.server_port}/ok follows {page}\n", done
    assert b"secret" not in done.stdout + done.stderr
    _put(url, page, 1, "Rain")
    with running("feeds", "notify", "--url", url, "--allow", "127.0.0.0/8", "--look-every", "100ms") as notifier:
        eventually(lambda: receiver.messages("/ok"), "the target is told")
        eventually(lambda: not _lag(url, page, target), "and that is acked")
        assert stop(notifier)[0] == 0
    assert run("feeds", "unsubscribe", page, "--notify", target, CLARION_URL=url).returncode == 0
    with Admin(url) as admin:
        assert admin.state("clarion/feeds/targets/" + target_name(target).removeprefix("notify/")).value is None
