"""An answer that is kept for who repeats a request keeps nothing else of it."""

from __future__ import annotations

import asyncio

from clarion.web.gateway import Gateway
from clarion.web.gateway_buffer import Buffer, Reservation
from clarion.web.gateway_settings import GatewaySettings
from clarion.web.post_queue import AcceptedPost, TakenPost
from clarion.web.post_requests import PostOptions, Refusal


def test_a_failure_that_is_told_again_and_again_holds_no_request() -> None:
    async def tell_thrice() -> Refusal:
        gateway = Gateway(GatewaySettings(url="tcp://127.0.0.1:1"))
        accepted = AcceptedPost(b"a", 1, False, Reservation(Buffer(1, 1)))
        accepted.refusal = Refusal(502, "PublisherExpired", "nobody knows")
        accepted.end()
        for _ in range(3):
            answer = await gateway._tell(TakenPost(accepted, repeated=True), PostOptions(idempotency_key="k"))
            assert (answer.status, answer.headers["Idempotent-Replayed"]) == (502, "true")
        await gateway._publisher.close(0.0)
        return accepted.refusal

    assert asyncio.run(tell_thrice()).__traceback__ is None  # which would have frames, and these the request
