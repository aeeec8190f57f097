"""The HTTP gateway in front of a real broker: what is posted is stored, once, as it was sent."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from tests.integration.gateway_process import Answer, GatewayProcess
from tests.integration.shell import one_line, run
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Message, Subscriber

LINES = "application/x-ndjson"


@pytest.fixture(scope="module")
def gateway(url: str) -> Iterator[GatewayProcess]:
    """A gateway that the tests of this file share, on the broker that they share."""
    with GatewayProcess(url, "--body-bytes", "1MB") as started:
        eventually(started.connected, "the gateway has its broker")
        yield started


def _reader(url: str, topic: bytes | str) -> Subscriber:
    reader = Subscriber(url, f"reader of {topic!r}")
    reader.subscribe(topic)
    return reader


def test_a_posted_body_is_stored_byte_for_byte_and_the_answer_says_where(url: str, gateway: GatewayProcess) -> None:
    bodies = [b"hello", b"", bytes(range(256)) * 100, b"x" * 1_000_000]
    with _reader(url, "bodies") as reader:
        answers = [gateway.post("bodies", body) for body in bodies]
        found: list[Message] = []
        while len(found) < len(bodies):
            found += reader.get("bodies", wait_s=DEADLINE_S)
    assert [message.payload for message in found] == bodies
    assert [answer.status for answer in answers] == [201] * len(bodies)
    assert [answer.told for answer in answers] == [
        {"topic": "bodies", "id": str(message.id), "offset": message.offset} for message in found
    ]


@pytest.mark.parametrize(
    "name", [b"plain", b"a/path/of/parts", "schl\u00fcssel \u2603?#%".encode(), b"\xff\x00\xfe", b"b64:x"]
)
def test_every_name_of_a_topic_can_be_posted_to(url: str, gateway: GatewayProcess, name: bytes) -> None:
    try:
        text = name.decode()
        printable = text.isprintable() and not text.startswith("b64:")
    except UnicodeDecodeError:
        printable = False
    written = quote(text if printable else "b64:" + base64.urlsafe_b64encode(name).decode(), safe="")
    with _reader(url, name) as reader:
        assert gateway.post(written, b"for you").status == 201
        (message,) = reader.get(name, wait_s=DEADLINE_S)
        assert message.payload == b"for you"


def test_key_headers_and_times_go_with_the_message(url: str, gateway: GatewayProcess) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with _reader(url, "marked") as reader:
        marked = gateway.post("marked", b"1", Clarion_Key="b64:/w==", Clarion_Header_Type="text", Clarion_TTL="3600")
        later = gateway.post("marked", b"2", Clarion_Deliver_At=due.isoformat())
        assert (marked.status, later.status) == (201, 201)
        assert later.told["offset"] is None
        assert len(later.told["id"]) == 32
        (message,) = reader.get("marked", wait_s=DEADLINE_S)
        assert (message.payload, message.key, message.headers) == (b"1", b"\xff", {"type": b"text"})


def test_each_line_is_a_message_and_the_answer_counts_them(url: str, gateway: GatewayProcess) -> None:
    lines = [b'{"n": %d}' % number for number in range(3000)]
    with _reader(url, "lines") as reader:
        answer = gateway.post(
            "lines", b"\n".join(lines[:1000]) + b"\r\n\n" + b"\n".join(lines[1000:]), Content_Type=LINES
        )
        assert answer.status == 201
        assert answer.told["count"] == 3000
        found: list[Message] = []
        while len(found) < len(lines):
            found += reader.get("lines", wait_s=DEADLINE_S)
    assert [message.payload for message in found] == lines
    offsets = [offset for first, last in answer.told["offsets"] for offset in range(first, last + 1)]
    assert offsets == [message.offset for message in found]


def test_lines_of_which_one_is_refused_are_all_refused(url: str, gateway: GatewayProcess) -> None:
    with _reader(url, "all or none") as reader:
        refused = gateway.post("all%20or%20none", b"1\n" * 20_000, Content_Type=LINES)
        assert (refused.status, refused.told["error"]) == (413, "TooLarge")
        assert "send fewer" in refused.told["message"]
        assert gateway.post("all%20or%20none", b"\n\r\n", Content_Type=LINES).status == 400
        assert gateway.post("all%20or%20none", b"after").told["offset"] == 0
        assert [message.payload for message in reader.get("all or none", wait_s=DEADLINE_S)] == [b"after"]


def test_whoever_does_not_want_to_wait_is_answered_at_once(url: str, gateway: GatewayProcess) -> None:
    with _reader(url, "soon") as reader:
        answer = gateway.post("soon", b"1", Prefer="respond-async")
        assert (answer.status, answer.told) == (202, {"topic": "soon", "accepted": 1})
        assert answer.headers["preference-applied"] == "respond-async"
        assert [message.payload for message in reader.get("soon", wait_s=DEADLINE_S)] == [b"1"]


def test_a_topic_without_subscribers_is_404_and_says_what_to_do(gateway: GatewayProcess) -> None:
    answer = gateway.post("no%20one", b"1", Idempotency_Key="nobody")
    assert (answer.status, answer.told["error"]) == (404, "NoSubscriber")
    assert "so nothing was stored" in answer.told["message"]
    assert "clarion subscribe 'no one' --as NAME" in answer.told["message"]
    # Asked again it is tried again, not answered from memory: somebody may subscribe by now.
    assert "idempotent-replayed" not in gateway.post("no%20one", b"1", Idempotency_Key="nobody").headers


def test_the_same_key_gives_the_first_answer_and_no_second_message(url: str, gateway: GatewayProcess) -> None:
    with _reader(url, "keyed") as reader:
        first = gateway.post("keyed", b"once", Idempotency_Key="k1")
        again = gateway.post("keyed", b"once", Idempotency_Key="k1")
        assert (again.status, again.told) == (first.status, first.told) == (201, first.told)
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        other = gateway.post("keyed", b"something else", Idempotency_Key="k1")
        assert (other.status, other.told["error"]) == (422, "KeyReused")
        assert gateway.post("keyed", b"once", Idempotency_Key="k2").told["offset"] == first.told["offset"] + 1
        assert [message.payload for message in reader.get("keyed", wait_s=DEADLINE_S)] == [b"once", b"once"]


def test_requests_with_the_same_key_at_the_same_time_are_one_message(url: str, gateway: GatewayProcess) -> None:
    answers: list[Answer] = []
    with _reader(url, "at once") as reader:
        at_once = threading.Barrier(8)

        def post() -> None:
            at_once.wait(DEADLINE_S)
            answers.append(gateway.post("at%20once", b"once", Idempotency_Key="at once"))

        threads = [threading.Thread(target=post) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert [answer.status for answer in answers] == [201] * 8
        assert all(answer.told == answers[0].told for answer in answers)
        assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7
        assert len(reader.get("at once", wait_s=DEADLINE_S)) == 1


@pytest.mark.parametrize(
    ("path", "headers", "part"),
    [
        ("/topics/", {}, "at least one byte"),
        ("/topics/a?b", {}, "%3F"),
        ("/topics/a#b", {}, "%23"),
        ("/%74opics/a", {}, "/topics/NAME"),
        ("/topics/%ff", {}, "not UTF-8"),
        ("/topics/b64:!", {}, "base64"),
        ("/topics/a/*", {}, "stands for many topics"),
        ("/topics/a", {"Clarion-TTL": "-1"}, "Clarion-TTL"),
        ("/topics/a", {"Clarion-Deliver-At": "tomorrow"}, "Clarion-Deliver-At"),
        ("/topics/a", {"Clarion-Kye": "k"}, "no header clarion-kye"),
        ("/topics/a", {"Idempotency-Key": "k" * 300}, "256 characters"),
    ],
)
def test_what_cannot_be_understood_is_400_and_says_why(
    gateway: GatewayProcess, path: str, headers: dict[str, str], part: str
) -> None:
    client = gateway.client()
    answer = client.ask("POST", path, b"x", **headers)
    client.close()
    assert answer.status == 400
    assert answer.told.keys() == {"error", "message"}
    assert part in answer.told["message"]
    assert "othing was queued" in answer.told["message"]


def test_other_refusals_are_json_too(gateway: GatewayProcess) -> None:
    client = gateway.client()
    assert client.ask("GET", "/topics/a").status == 405
    assert client.ask("POST", "/elsewhere").status == 404
    assert client.post("%24dead/x", b"1").status == 403
    assert client.post("a", b"1", Origin="http://example.org").status == 403
    assert client.post("a", b"1", Content_Encoding="gzip").status == 415
    client.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_413(gateway: GatewayProcess, chunked: bool) -> None:
    body = iter([b"x" * 600_000, b"x" * 600_000]) if chunked else b"x" * 1_200_000
    answer = gateway.post("large", body)
    assert (answer.status, answer.told["error"]) == (413, "TooLarge")
    assert "1000000 bytes" in answer.told["message"]


def test_a_client_that_asks_first_is_told_before_it_sends(gateway: GatewayProcess) -> None:
    answer = gateway.post("large", None, Expect="100-continue", Content_Length="2000000")
    assert answer.status == 413


def test_stats_account_for_every_message(gateway: GatewayProcess) -> None:
    gateway.post("no%20one", b"1")
    stats = gateway.get("/stats").told
    assert stats["accepted"] == stats["stored"] + stats["failed"] + stats["waiting"]
    assert (stats["drops"], stats["waiting"], stats["refused_429"]) == (0, 0, 0)
    assert stats["failed"] >= 1
    assert stats["buffer"] == {"messages": 0, "messages_max": 10_000, "bytes": 0, "bytes_max": 64 * 2**20}
    assert stats["publisher"]["messages_stored"] == stats["stored"]
    assert gateway.get("/").status == 200


def test_topics_can_be_limited(url: str) -> None:
    with (
        GatewayProcess(url, "--topic", "sensors/#", "--topic", "alerts") as limited,
        _reader(url, "sensors/a") as reader,
    ):
        assert limited.post("sensors/a", b"1").status == 201
        refused = limited.post("others", b"1")
        assert (refused.status, refused.told["error"]) == (403, "Forbidden")
        assert len(reader.get("sensors/a", wait_s=DEADLINE_S)) == 1
        assert limited.post("alerts", b"1").status == 404  # allowed, but nobody subscribes


def test_the_publisher_behind_it_is_tuned_and_that_can_be_seen(url: str, gateway: GatewayProcess) -> None:
    with _reader(url, "tuned"):
        assert gateway.post("tuned", b"1").status == 201
    seen = gateway.get("/stats").told["tuning"]["tuned"]
    assert {"batch_size", "poll_interval_s", "load_per_s", "capacity_per_s", "credit", "pending"} <= seen.keys()


def test_an_address_in_use_is_told(url: str, gateway: GatewayProcess) -> None:
    done = run("publish", "--from-http", "--url", url, "--listen", f"127.0.0.1:{gateway.address[1]}", "--json")
    assert done.returncode == 1
    assert json.loads(one_line(done))["error"]["code"] == "BadSettings"
