"""docs/guide/watch.md: its schema fits the events of a launch, its recipes take them.

The libraries of the recipes are stand-ins here, which accept the calls that the real ones accept
(prometheus_client 0.26, opentelemetry-api 1.45, tensorboard 2.21, wandb 0.31).
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import xmp

pytestmark = pytest.mark.failing

PAGE = (Path(__file__).parents[2] / "docs/guide/watch.md").read_text()
JSON = [json.loads(each) for each in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
KINDS = {"number": float, "integer": int, "string": str, "null": type(None)}
Recipe = Callable[[xmp.Event], None]


class Metric:
    """A counter or gauge of prometheus_client, without labels in what it counts."""

    def __init__(self, name: str, documentation: str, labelnames: list[str] = []) -> None:  # noqa: B006
        self.values: Counter[str] = Counter()

    def labels(self, value: str) -> SimpleNamespace:
        return SimpleNamespace(inc=lambda: self.values.update([value]))

    def inc(self) -> None:
        self.values[""] += 1

    def dec(self) -> None:
        self.values[""] -= 1


class Spans:
    """The tracer of opentelemetry, and the names of the spans that have ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str | None]] = []

    def get_tracer(self, name: str) -> Spans:
        return self

    def set_span_in_context(self, span: SimpleNamespace) -> str:
        return str(span.name)

    def start_span(
        self, name: str, context: str | None = None, *, start_time: int
    ) -> SimpleNamespace:
        def end(end_time: int) -> None:
            assert end_time >= start_time
            self.ended.append((name, context))

        def add_event(name: str, attributes: dict[str, str], timestamp: int) -> None:
            assert timestamp >= start_time

        return SimpleNamespace(name=name, end=end, add_event=add_event)


class Board:
    """tensorboard.summary.Writer and the run of wandb."""

    def __init__(self) -> None:
        self.replicas: list[int] = []
        self.alerts: list[str] = []

    def add_scalar(self, tag: str, data: float, step: int, *, wall_time: float) -> None:
        self.replicas.append(int(data))

    def flush(self) -> None:
        pass

    def log(self, data: dict[str, Any]) -> None:
        self.replicas.append(data["xmp/replicas"])

    def alert(self, title: str, text: str) -> None:
        self.alerts.append(text)


def recipe(name: str, monkeypatch: pytest.MonkeyPatch, **libraries: dict[str, Any]) -> Any:
    """Execute the module of the page that is called ``name``, with stand-ins for its imports."""
    (text,) = re.findall(rf"```python\n# {name}\.py\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in text.splitlines() if line]) <= 15
    for library, names in libraries.items():
        module = ModuleType(library.replace("__", "."))
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    made = ModuleType(name)
    exec(text, vars(made))
    return made


def fails(rank: int) -> None:
    if rank == 1:
        raise ValueError("no such label: 11")


def test_the_recipes_take_the_events_of_a_restart(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    boards, spans = [Board(), Board()], Spans()
    client = {"Counter": Metric, "Gauge": Metric, "start_http_server": lambda port, addr: None}
    prometheus = recipe("to_prometheus", monkeypatch, prometheus_client=client)
    telemetry = recipe("to_opentelemetry", monkeypatch, opentelemetry={"trace": spans})
    modules = [
        *(prometheus, telemetry),
        recipe("to_tensorboard", monkeypatch, tensorboard={}, tensorboard__summary={
            "Writer": lambda folder: boards[0]}),
        recipe("to_wandb", monkeypatch, wandb={"init": lambda project: boards[1]}),
    ]  # fmt: skip
    events: list[xmp.Event] = []

    def take(event: xmp.Event) -> None:
        events.append(event)
        for module in modules:
            module.export(event)

    with pytest.raises(xmp.ReplicaRaised):
        xmp.spawn(fails, nprocs=2, runtime="cpu", max_restarts=1, events=take)
    assert "events= failed" not in capfd.readouterr().err
    assert prometheus.EVENTS.values == Counter(event.name for event in events)
    assert prometheus.REPLICAS.values[""] == 0
    assert sorted(spans.ended, key=str) == [
        ("launch", None), *[(f"rank {rank}", "launch") for rank in (0, 0, 1, 1)]
    ]  # fmt: skip
    for board in boards:
        assert (max(board.replicas), board.replicas[-1]) == (2, 0)
    assert [text[:6] for text in boards[1].alerts] == ["rank 1", "rank 1"]
    for event in events:
        fits_the_schema(dataclasses.asdict(event))


def fits_the_schema(line: dict[str, Any]) -> None:
    (schema,) = [each for each in JSON if "$schema" in each]
    assert [*line] == [*schema["properties"]] == schema["required"]
    for field, rule in schema["properties"].items():
        kinds = rule.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        allowed = rule.get("enum", [rule["const"]] if "const" in rule else [])
        assert line[field] in allowed if allowed else type(line[field]) in map(KINDS.get, kinds)


def test_the_line_of_the_page_fits_its_schema() -> None:
    fits_the_schema(JSON[0])


def test_the_schema_has_each_name_of_an_event() -> None:
    (schema,) = [each for each in JSON if "$schema" in each]
    names = re.findall(r'^ +"(\w+)"  ', xmp.Event.__doc__ or "", re.MULTILINE)
    assert schema["properties"]["name"]["enum"] == names
