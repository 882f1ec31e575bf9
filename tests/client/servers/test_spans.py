"""Spans from a push over its application to its acknowledgement."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

import stratagem
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import CancelledError
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.cli import app
from stratagem_psserver.server import ParameterServer
from stratagem_rpc import tracing
from stratagem_rpc.serving.command_line import exported_spans
from tests.client.connections import add, connected, make, value_of


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Has the spans of this process, in which servers are, too."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stratagem.opentelemetry.enable(provider)
    yield exporter
    stratagem.opentelemetry.disable()


def train() -> None:
    with LocalCluster(ps=1) as cluster:
        strategy = stratagem.ParameterServerStrategy(cluster.resolver("worker", 0))
        with strategy.scope():
            model = torch.nn.Linear(2, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = stratagem.DistributedOptimizer(sgd)

        def step() -> None:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        strategy.run(step)
        strategy.run(step)
        strategy.close()


def path(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> list[tuple[str, str]]:
    """The span, the one it is a part of, and so on."""
    here = [(span.name, span.kind.name)]
    parent = spans.get(span.parent.span_id) if span.parent else None
    return here + (path(parent, spans) if parent else [])


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_push_is_one_trace_from_the_worker_to_the_variables(
    transport: str, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", transport)
    train()
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    paths = [path(span, spans) for span in spans.values()]
    push = [("Update", "SERVER"), ("UpdateAndRead", "CLIENT")]
    assert paths.count([("apply", "INTERNAL"), *push]) == 2
    assert [("Read", "SERVER"), ("Read", "CLIENT")] in paths
    for span in spans.values():
        parent = spans.get(span.parent.span_id) if span.parent else None
        if parent is not None:
            assert (parent.start_time or 0) <= (span.start_time or 0)
            assert span.context and parent.context
            assert span.context.trace_id == parent.context.trace_id


def test_what_cannot_be_sent_has_a_span_that_ends(
    server: ParameterServer, exporter: InMemorySpanExporter
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(2))
        connection.close()
        exporter.clear()
        with pytest.raises(CancelledError):
            value_of(connection, "v", torch.zeros(2))
        with pytest.raises(CancelledError):
            add(connection, "v", torch.zeros(2))
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["Read", "Assign"]


def test_nothing_is_sent_or_made_of_spans_unless_asked_for() -> None:
    assert tracing.sending("Update", "the server") is None
    assert tracing.answering(RequestKey(), "ps") is tracing.within("apply")


def test_without_opentelemetry_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    missing = r"pip install 'stratagem\[opentelemetry\]'"
    with pytest.raises(ImportError, match=missing):
        stratagem.opentelemetry.enable()
    finished = CliRunner().invoke(app, ["--traces"])
    assert finished.exit_code == 2
    assert "stratagem[opentelemetry]" in finished.output


class Collector(BaseHTTPRequestHandler):
    """Takes spans as a collector of OpenTelemetry does."""

    taken: ClassVar[list[ExportTraceServiceRequest]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.taken.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def test_a_server_process_sends_its_spans_to_a_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        with exported_spans("ps:3"), tracing.within("apply"):
            pass
        collector.shutdown()
    (sent,) = Collector.taken[0].resource_spans
    names = {one.key: one.value.string_value for one in sent.resource.attributes}
    assert names["service.instance.id"] == "ps:3"
    assert [span.name for span in sent.scope_spans[0].spans] == ["apply"]
