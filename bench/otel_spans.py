"""`python bench/otel_spans.py MESSAGES BATCH FILE`: OpenTelemetry spans of messages, exported to a file as OTLP.

A publish span and a receive span for each batch of messages, linked by the context in the headers; everything is
sampled. Run by the Python of .venv-peers, which has no Clarion.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.version import __version__

_QUEUED = 8192
_FLUSHED = 1000  # messages, so that no span is dropped from a full queue
_ENDPOINTS = 10  # publishers, and as many subscribers


class FileExporter(SpanExporter):
    """Appends each batch of spans as a collector would be sent it, with its length."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")
        self.spans = 0

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Write spans."""
        data = encode_spans(spans).SerializeToString()
        self._file.write(len(data).to_bytes(4, "big") + data)
        self.spans += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """End."""
        self._file.close()


def main(messages: int, batch: int, file: Path) -> dict[str, Any]:
    """Make the spans; return what that took."""
    exporter = FileExporter(file)
    provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource({"service.name": "broker"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUED))
    tracer = provider.get_tracer("messages")
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for number in range(messages // batch):
        place = number % _ENDPOINTS
        about: dict[str, Any] = {
            "messaging.system": "clarion", "messaging.destination.name": f"t/{place}",
            "messaging.message.id": f"{number:032x}", "messaging.client.id": f"publisher-{place}",
        }  # fmt: skip
        if batch > 1:
            about["messaging.batch.message_count"] = batch
        headers: dict[str, str] = {}
        sent = tracer.start_span(f"send t/{place}", kind=SpanKind.PRODUCER, attributes=about)
        propagate.inject(headers, set_span_in_context(sent))
        sent.end()
        about["messaging.client.id"] = f"subscriber-{place}"
        context = propagate.extract(headers)
        tracer.start_span(f"process t/{place}", context, kind=SpanKind.CONSUMER, attributes=about).end()
        if number % _FLUSHED == _FLUSHED - 1:
            provider.force_flush()
    provider.force_flush()
    cpu_s, taken_s = time.process_time() - begin_cpu_s, time.perf_counter() - begin_s
    provider.shutdown()
    if exporter.spans != 2 * (messages // batch):
        raise SystemExit(f"{exporter.spans} spans were exported of {2 * (messages // batch)}")
    return {"cpu_s": cpu_s, "taken_s": taken_s, "spans": exporter.spans, "version": __version__}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
