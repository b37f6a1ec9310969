"""The report of a run as text, as JSON and as a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from treewright.retrace.cache import cache_report
from treewright.retrace.page import page
from treewright.retrace.tally import Run, summed_up
from treewright.retrace.words import as_json, report_text


def events(function: str, began: float, seconds: float = 0.1, **more: Any) -> list[dict[str, Any]]:
    """The trace and the compilation of one program."""
    line = {"function": function, "file": "/a/train.py", "line": 3, "operation": False, "thread": "MainThread"}
    line |= {"place": "train.py:9 in main", "ours": 0.001}
    at = began + seconds
    trace = {"kind": "trace", "at": at, "seconds": seconds, "self": seconds, **line, **more}
    rest = {name: value for name, value in more.items() if name != "retrace"}
    compiled = {"kind": "compile", "at": at + 2 * seconds, "seconds": 2 * seconds, "self": 2 * seconds}
    return [trace, {**compiled, **line, "cache": {}, **rest}]


def again(change: str, cure: str = "pad it", path: str = "x") -> dict[str, Any]:
    reason = {"path": path, "kind": "shape", "change": change, "reason": "", "cure": cure}
    return {"retrace": {"event": "trace", "number": 2, "text": "f retraced", "reasons": [reason]}}


def run_of(*lines: list[dict[str, Any]], seconds: float = 10.0, status: int = 0) -> Run:
    about = {"kind": "jax", "jax": "0.10", "XLA_FLAGS": "", "ours": 0.01}
    flat = [about, *(each for line in lines for each in line)]
    return summed_up(flat, command=["train.py", "a b"], status=status, began=0.0, ended=seconds)


def text_of(run: Run) -> str:
    return report_text(run, cache_report(run, None))


class _Page(HTMLParser):
    """The tags of a page, each closed, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.bars: list[dict[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a":
            self.links.append(given["href"])
            self.bars.append(given)
        if tag not in {"meta", "br", "!doctype"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(run: Run) -> tuple[str, _Page]:
    text = page(run, cache_report(run, None))
    return text, _Page(text)


def test_a_page_is_well_formed_and_asks_nothing_of_other_places() -> None:
    run = run_of(events("f", 1.0), events("f", 3.0, **again("a -> b")), events("<g> & 'h'", 5.0))

    text, parsed = page_of(run)

    assert parsed.open == []
    assert not re.search(r"(src|href)=\"(?!#)|url\(|https?:|@import|<script", text)
    assert {link.removeprefix("#") for link in parsed.links} <= parsed.ids
    assert "&lt;g&gt; &amp; &#x27;h&#x27;" in text
    assert '<meta name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_bars_stand_where_their_time_is_and_are_coloured_by_what_could_be_avoided() -> None:
    read = events("k", 7.0, cache={"outcome": "read", "key": "k-1", "saved": 1.0})

    _, parsed = page_of(run_of(events("f", 1.0), events("f", 5.0, **again("a -> b")), read))

    assert [bar["class"] for bar in parsed.bars] == [
        *("trace needed", "compile needed"),
        *("trace avoidable", "compile avoidable"),
        *("trace read", "compile read"),
    ]
    assert parsed.bars[0]["style"] == "left:10.000%;width:1.000%"
    assert parsed.bars[3]["style"] == "left:51.000%;width:2.000%"
    assert parsed.bars[3]["title"] == "f compiled at train.py:9 in main: 200 ms, 5.1 s after the start"


def test_bars_that_no_eye_can_tell_apart_are_one() -> None:
    many = [events("f", 1 + number * 0.003, 0.001) for number in range(300)]

    _, parsed = page_of(run_of(*many))

    assert len(parsed.bars) < 620
    _, one_kind = page_of(run_of(*[events("f", 1 + number * 0.003, 0.001)[1:] for number in range(300)]))
    (bar,) = one_kind.bars
    assert bar["title"].startswith("300 programs: ")


def test_long_reports_are_cut_and_say_so() -> None:
    functions = [events(f"f{n}", 0.1 * n, 0.01, line=n + 1, **again("a -> b", path=f"x{n}")) for n in range(30)]
    needed = [events(f"g{n}", 4 + 0.1 * n, 0.01, line=n + 50, **again("a -> b", cure="")) for n in range(12)]

    run = run_of(*functions, *needed)
    text = text_of(run)

    assert "27 other functions" in text
    assert text.count("cure: pad it") == 10
    assert "... and 20 more; --html shows all of them" in text
    assert "... and 2 more; --html shows all of them" in text
    whole, parsed = page_of(run)
    assert whole.count('<div class="card avoidable">') == 30
    assert "28 other functions" in whole
    assert len(parsed.ids) == 42
    lots, parsed = page_of(run_of(*[events("f", 0.004 * n, 0.001) for n in range(2100)]))
    assert "... and 100 more; --json has all of them" in lots
    assert len(parsed.ids) == 2000


def test_a_run_without_jax_and_one_that_failed_are_told() -> None:
    nothing = run_of()

    assert "train.py 'a b' ran for 10 s, and JAX traced and compiled nothing in it." in text_of(nothing)
    assert "When" not in page_of(nothing)[0]
    failed = summed_up(
        [{"kind": "note", "text": "not seen"}, {"kind": "note", "text": "not seen"}, *events("f", 1.0)],
        command=["x.py"],
        status=-9,
        began=0.0,
        ended=130.0,
    )
    assert text_of(failed).count("  not seen\n") == 1
    assert "ran for 2 min" in text_of(failed)
    assert "It ended with status -9." in page_of(failed)[0]


def test_reasons_and_places_are_told_once_if_they_are_the_same() -> None:
    same = again("a -> b")
    other: dict[str, Any] = {**again("b -> c"), "place": "train.py:20 in main"}

    text = text_of(run_of(events("f", 1.0, **same), events("f", 2.0, **same)))
    assert "the last time" not in text
    assert "     at train.py:9 in main\n" in text
    text = text_of(run_of(events("f", 1.0, **same), events("f", 2.0, **other)))
    assert "     the last time: x: b -> c\n" in text
    assert "     first at train.py:9 in main, last at train.py:20 in main\n" in text
    long = text_of(run_of(events("f", 1.0, **again("a" * 200))))
    assert f"     x: {'a' * 103} ...\n" in long


def test_recompiles_unknown_lines_and_many_reasons_are_told() -> None:
    reasons = [{"path": f"x{n}", "kind": "shape", "change": "a -> b", "reason": "", "cure": "pad it"} for n in range(9)]
    retrace = {"event": "recompile", "number": 2, "text": "f recompiled", "reasons": reasons}

    run = run_of(events("f", 1.0, retrace=retrace, place=""))
    text = text_of(run)

    assert "1. f (train.py:3), compiled again without a trace: 1 time, 300 ms\n" in text
    assert "     ... and 3 more\n     cure: pad it\n" in text
    assert page_of(run)[1].open == []
    few = [events(f"g{n}", n, line=n + 1, **again("a -> b", cure="")) for n in range(3)]
    assert text_of(run_of(*few)).count("1 time") == 3


def operation(name: str, began: float, operands: str, seconds: float = 0.1) -> list[dict[str, Any]]:
    return events(name, began, seconds, operands=operands, operation=True, file="", line=0)


def test_operations_of_one_line_are_one_group_and_all_but_the_costliest_could_be_saved() -> None:
    names = ("add", "sin", "add", "cos", "dot", "log")
    lines = [operation(name, number, "f32[2]", 0.1 if number else 0.2) for number, name in enumerate(names)]

    run = run_of(*lines, operation("alone", 9, "")[:1])
    text = text_of(run)

    assert run.groups() == []
    (group,) = run.operations()
    assert len(group.programs) == 6
    assert run.saveable == pytest.approx(group.seconds - 0.6) == pytest.approx(1.5)
    assert "Up to 1.5 s could be saved (15.0% of the run): 1.5 s of 5 unjitted operations." in text
    assert "  train.py:9 in main: 6 programs, 2.1 s\n     add 2 times, sin, cos, dot, ...\n     cure: jit the" in text
    whole, parsed = page_of(run)
    assert [bar["class"] for bar in parsed.bars[:4]] == [
        *("trace needed", "compile needed"),
        *("trace avoidable", "compile avoidable"),
    ]
    assert "<h3>train.py:9 in main: 6 programs, 2.1 s</h3>" in whole


def test_an_operation_of_one_line_whose_shape_grows_is_told() -> None:
    run = run_of(*(operation("concatenate", number, f"f32[{number}]") for number in range(4)))
    (group,) = run.operations()

    assert [reason["change"] for reason in group.reasons] == [
        "concatenate 4 times",
        "of f32[0] at first, and of f32[3] at last",
    ]
    assert "cure: keep the shapes the same, use numpy there" in text_of(run)
    json.dumps(as_json(run, cache_report(run, None)))


def test_many_lines_of_operations_are_cut_and_said_to_be() -> None:
    run = run_of(*(operation("add", n / 50, "", 0.01) for n in range(50)))
    for number, program in enumerate(run.programs):
        program.place = f"train.py:{number // 2}"

    assert "... and 5 more lines" in page_of(run)[0]


def test_as_json_it_is_all_data() -> None:
    run = run_of(events("f", 1.0), events("f", 2.0, **again("a -> b")))

    data = json.loads(json.dumps(as_json(run, cache_report(run, None))))

    assert data["functions"][0] == {
        "function": "f",
        "where": "train.py:3",
        "traces": 2,
        "compilations": 2,
        "tracing": 0.2,
        "compiling": 0.4,
    }
    assert data["groups"][0]["first"] == "train.py:9 in main"
    assert data["groups"][0]["cures"] == ["pad it"]
    assert (data["version"], data["retraces"], data["saveable"]) == (1, 1, data["groups"][0]["seconds"])
    assert len(data["programs"]) == 2
