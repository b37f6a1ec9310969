"""The report of a run as one page: a timeline, what could be saved, the table, the cache, and every program."""

import dataclasses
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from types import MappingProxyType

from treewright.retrace.cache import CacheReport
from treewright.retrace.tally import Group, Program, Run
from treewright.retrace.words import (
    HEADS,
    cache_lines,
    card,
    counted,
    duration,
    headline,
    numbers,
    reason_text,
    saveable_line,
    share,
)

_LANES = 14
_LINES = 20
_LISTED = 2000
_TICKS = 6
_GAP = 0.001  # of the run: bars that are closer become one
_CLASSES = ("avoidable", "needed", "read")
_LEGEND = ("could be avoided", "needed once", "read from the persistent cache")

_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfb; --ink: #1d2433; --soft: #626b7d; --line: #dfe2e8; --card: #ffffff;
  --avoidable: #d9480f; --needed: #3f6fb0; --read: #2b8a5b; --track: #eef0f4; --mark: #fff3bf; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --ink: #e7eaf0; --soft: #9aa4b5; --line: #2c323d;
  --card: #1b1f27; --avoidable: #ff9a52; --needed: #7fb0ee; --read: #63cf9a; --track: #222731; --mark: #4a3d10; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .75rem; }
code, .place { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .875em;
  overflow-wrap: anywhere; }
p { margin: .25rem 0; } .soft, .place { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile.avoidable b { color: var(--avoidable); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; color: var(--soft); font-size: .875rem; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
.lane { display: grid; grid-template-columns: 14rem 1fr; align-items: center; gap: .25rem .75rem; padding: .2rem 0; }
.lane .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-size: .9rem; }
.track { position: relative; height: 1.25rem; background: var(--track); border-radius: 3px; overflow: hidden; }
.track a { position: absolute; top: 0; bottom: 0; min-width: 3px; background: var(--needed); }
.track a.trace { opacity: .6; } a.avoidable, i.avoidable { background: var(--avoidable) !important; }
a.read, i.read { background: var(--read) !important; } i.needed { background: var(--needed); }
.ticks { position: relative; height: 1.4rem; color: var(--soft); font-size: .8rem; }
.ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.ticks span:first-child { transform: none; } .ticks span:last-child { transform: translateX(-100%); }
.card { margin: .75rem 0; border-left: 4px solid var(--needed); }
.card.avoidable { border-left-color: var(--avoidable); }
.card h3 { font-size: 1rem; margin: 0 0 .35rem; overflow-wrap: anywhere; } .cure::before { content: "\\2192\\00a0"; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; min-width: 11rem; }
th { font-weight: 600; font-size: .875rem; }
ol.all { list-style: none; padding: 0; font-size: .9rem; } ol.all li { padding: .45rem .5rem; border-bottom: 1px solid
  var(--line); border-left: 4px solid var(--needed); } ol.all li.avoidable { border-left-color: var(--avoidable); }
ol.all li.read { border-left-color: var(--read); } li:target { background: var(--mark); }
@media (max-width: 42rem) { .lane { grid-template-columns: 1fr; padding: .35rem 0; } .ticks span:nth-child(even) {
  display: none; } th, td { padding: .35rem .4rem; font-size: .875rem; } .edge { display: none; } }
"""


@dataclasses.dataclass(slots=True)
class _Bar:
    """A part of a lane: one span, or several that no eye could tell apart."""

    kind: str  # `trace` or `compile`
    shade: str
    began: float
    ended: float
    programs: list[tuple[int, Program]]


def page(run: Run, cache: CacheReport) -> str:
    """The page, in itself: it asks nothing of any other place."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(shlex.join(run.command))}: what JAX compiled</title>\n<style>{_STYLE}</style>",
            "</head>\n<body>",
            *_head(run),
            *(_body(run, cache) if run.programs else ()),
            "</body>\n</html>\n",
        ]
    )


def _head(run: Run) -> Iterator[str]:
    yield f'<p class="soft">treewright retraces</p>\n<h1><code>{escape(shlex.join(run.command))}</code></h1>'
    ending = "" if run.status == 0 else f" It ended with status {run.status}."
    about = f" JAX {run.jax}; watching it took {duration(run.ours)}." if run.jax else ""
    yield f'<p class="soft">{escape(headline(run).removeprefix(shlex.join(run.command)).strip().capitalize())}'
    yield f"{escape(ending + about)}</p>"
    yield from (f"<p>{escape(note)}</p>" for note in run.notes)


def _body(run: Run, cache: CacheReport) -> Iterator[str]:
    yield '<div class="tiles">'
    yield _tile(duration(run.seconds), "the run")
    yield _tile(duration(run.compiling), f"tracing and compiling, {share(run.compiling, run)}")
    yield _tile(duration(run.saveable), f"could be saved, {share(run.saveable, run)}", "avoidable")
    yield _tile(str(run.retraces), "retraces and recompiles")
    yield "</div>"
    yield from _timeline(run)
    groups = run.groups()
    yield "<h2>What could be saved</h2>"
    yield f"<p>{escape(saveable_line(run))}</p>"
    yield from (line for group in groups if group.avoidable for line in _card(group))
    others = [group for group in groups if not group.avoidable]
    if others:
        yield "<h2>Compiled again, for reasons that have no general cure</h2>"
        yield from (line for group in others for line in _card(group))
    operations = run.operations()
    if operations:
        yield "<h2>Operations outside of jit</h2>"
        yield "<p>They are compiled one by one. These lines needed several:</p>"
        yield from (line for group in operations[:_LINES] for line in _card(group))
        rest = operations[_LINES:]
        yield f"<p>... and {len(rest)} more lines</p>" if rest else ""
    yield from _table(run)
    yield "<h2>The persistent compilation cache</h2>"
    yield from (_cache_line(line) for line in cache_lines(cache))
    yield from _list(run)


def _tile(number: str, text: str, shade: str = "") -> str:
    return f'<div class="tile {shade}"><b>{escape(number)}</b>{escape(text)}</div>'


def _cache_line(line: str) -> str:
    is_code = line.lstrip().startswith(("- ", "+ "))
    return f"<p><code>{escape(line.strip())}</code></p>" if is_code else f"<p>{escape(line.strip())}</p>"


def _shade(program: Program) -> str:
    if program.cache.get("outcome") == "read":
        return "read"
    return "avoidable" if program.avoidable else "needed"


# The timeline


def _timeline(run: Run) -> Iterator[str]:
    rows = run.rows()
    numbered = list(enumerate(run.programs))
    yield '<h2>When</h2>\n<div class="legend">'
    shades = set(map(_shade, run.programs))
    for shade, text in zip(_CLASSES, _LEGEND, strict=True):
        if shade in shades:
            yield f'<span><i class="{shade}"></i>{text}</span>'
    yield "<span>pale: tracing; full: compiling</span></div>"
    for row in rows[:_LANES]:
        mine = [(number, program) for number, program in numbered if program.row == (row.function, row.where)]
        yield from _lane(row.function, row.where, mine, run)
    shown = {(row.function, row.where) for row in rows[:_LANES]}
    rest = [(number, program) for number, program in numbered if program.row not in shown]
    if rest:
        yield from _lane(f"{len(rows) - _LANES} other functions", "", rest, run)
    yield f'<div class="lane"><span class="edge"></span><div class="ticks">{"".join(_ticks(run.seconds))}</div></div>'


def _lane(name: str, where: str, programs: Iterable[tuple[int, Program]], run: Run) -> Iterator[str]:
    yield f'<div class="lane"><span class="name" title="{escape(where)}">{escape(name)} '
    yield f'<span class="place">{escape(where)}</span></span><div class="track">'
    yield from (_bar(bar, run.seconds) for bar in _bars(programs, run.seconds))
    yield "</div></div>"


def _bars(programs: Iterable[tuple[int, Program]], whole: float) -> list[_Bar]:
    found: list[_Bar] = []
    for number, program in programs:
        for event, began, seconds in program.spans:
            kind, shade = "trace" if event == "trace" else "compile", _shade(program)
            last = found[-1] if found and (found[-1].kind, found[-1].shade) == (kind, shade) else None
            if last is not None and 0 <= began - last.ended < whole * _GAP:
                last.ended = began + seconds
                last.programs += [] if last.programs[-1][0] == number else [(number, program)]
            else:
                found.append(_Bar(kind, shade, began, began + seconds, [(number, program)]))
    return found


def _bar(bar: _Bar, whole: float) -> str:
    left = min(99.9, 100 * max(0.0, bar.began) / whole)
    width = min(100 - left, 100 * (bar.ended - bar.began) / whole)
    number, program = bar.programs[0]
    word = "traced" if bar.kind == "trace" else "compiled"
    title = f"{program.function} {word} at {program.place}" if not bar.programs[1:] else f"{len(bar.programs)} programs"
    title += f": {duration(bar.ended - bar.began)}, {duration(max(0.0, bar.began))} after the start"
    style = f"left:{left:.3f}%;width:{width:.3f}%"
    return f'<a class="{bar.kind} {bar.shade}" style="{style}" href="#p{number}" title="{escape(title)}"></a>'


def _ticks(whole: float) -> Iterator[str]:
    step = _round_step(whole / _TICKS)
    for number in range(int(whole / step) + 1):
        yield f'<span style="left:{100 * number * step / whole:.2f}%">{number * step:g} s</span>'


def _round_step(least: float) -> float:
    """The first of 1, 2, 5, 10, 20, 50 ... that is not less; also below 1."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999)


# What stands below it


def _card(group: Group) -> Iterator[str]:
    yield f'<div class="card {"avoidable" if group.avoidable else ""}">'
    for what, text in card(group):
        yield _CARD[what].format(escape(text.removeprefix("at ") if what == "place" else text))
    yield "</div>"


_CARD = MappingProxyType(
    {
        "title": "<h3>{}</h3>",
        "reason": "<p><code>{}</code></p>",
        "last": '<p><span class="soft">the last time:</span> <code>{}</code></p>',
        "place": '<p class="place">{}</p>',
        "cure": '<p class="cure">{}</p>',
    }
)


def _table(run: Run) -> Iterator[str]:
    yield '<h2>By function</h2>\n<div class="scroll"><table>'
    yield f"<tr>{''.join(f'<th>{head}</th>' for head in HEADS)}</tr>"
    for row in run.rows():
        name = f'{escape(row.function)} <span class="place">{escape(row.where)}</span>'
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in (name, *numbers(row, run)))}</tr>"
    yield "</table></div>"


def _list(run: Run) -> Iterator[str]:
    yield f'<h2>All {counted(len(run.programs), "program")}</h2>\n<ol class="all">'
    yield from (_listed(number, program) for number, program in enumerate(run.programs[:_LISTED]))
    yield "</ol>"
    if len(run.programs) > _LISTED:
        yield f"<p>... and {len(run.programs) - _LISTED} more; --json has all of them</p>"


def _listed(number: int, program: Program) -> str:
    began = program.spans[0][1]
    parts: Sequence[str] = (
        f"traced in {duration(program.tracing)}" if program.traced else "",
        f"compiled in {duration(program.compiling)}" if program.compiled else "",
        _CACHE_WORDS.get(str(program.cache.get("outcome")), ""),
    )
    reasons = "" if program.retrace is None else "; ".join(map(reason_text, program.retrace["reasons"]))
    for_what = f" of {program.operands}" if program.operands else ""
    lines = [
        f"<b>{escape(program.function + for_what)}</b> {escape(', '.join(filter(None, parts)))}",
        f'<span class="place">{duration(max(0.0, began))} after the start, at {escape(program.place or "?")}</span>',
        f"<code>{escape(reasons)}</code>" if reasons else "",
    ]
    return f'<li id="p{number}" class="{_shade(program)}">{"<br>".join(filter(None, lines))}</li>'


_CACHE_WORDS = MappingProxyType({"read": "read from the cache", "kept": "kept in the cache"})
