"""The memory of idempotency keys is bounded, and never forgets what is under way."""

from __future__ import annotations

from clarion.web.gateway_buffer import IdempotencyKeys, KnownRequest


def test_a_key_is_known_from_its_begin_until_others_push_it_out() -> None:
    keys: IdempotencyKeys[str] = IdempotencyKeys(kept_max=2)
    for name in ("a", "b", "c"):
        keys.begin(name, name.encode(), name.upper())
        assert keys.find(name) == KnownRequest(name.encode(), name.upper())
    assert len(keys) == 3
    for name in ("a", "b", "c"):
        keys.end(name)
    assert keys.find("a") is None
    assert keys.find("b") == KnownRequest(b"b", "B")
    assert len(keys) == 2


def test_what_is_under_way_is_not_pushed_out() -> None:
    keys: IdempotencyKeys[int] = IdempotencyKeys(kept_max=3)
    keys.begin("slow", b"", 0)
    for number in range(100):
        keys.begin(f"quick {number}", b"", number)
        keys.end(f"quick {number}")
    assert keys.find("slow") is not None
    keys.end("slow")
    assert keys.find("slow") is not None
    assert len(keys) == 3


def test_what_came_to_nothing_is_forgotten() -> None:
    keys: IdempotencyKeys[int] = IdempotencyKeys()
    keys.begin("a", b"", 1)
    keys.forget("a")
    assert keys.find("a") is None
    keys.begin("a", b"", 2)
    assert keys.find("a") == KnownRequest(b"", 2)
