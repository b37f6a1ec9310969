"""The law of statics: programs are right whenever comparison by identity gives the right one; fields keep their values.

Each example is a short story of a user's module: statics are made, what they read is changed and changed back, edited
and run again, and all of it in between goes through the caches of `jit`.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.nodes.static_generators import BODIES, CHANGES, FORMS, WAYS, ByCode, ByEquality, Plainly, Run, SameObject

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")]

Step = tuple[Any, ...]


WHATS = st.one_of(st.just("K"), st.sampled_from(sorted(CHANGES)))


@st.composite
def changes(draw: st.DrawFn) -> Step:
    what = draw(WHATS)
    return ("change", what, draw(st.sampled_from(range(len(CHANGES[what])))))


@st.composite
def there_and_back(draw: st.DrawFn) -> list[Step]:
    """Create, change, trace, change back, recreate: the values are the original ones, the program is not."""
    what = draw(WHATS)
    first, second = draw(st.permutations(range(len(CHANGES[what])))), ("change", what, 0)
    there, back = ("change", what, first[0]), ("change", what, first[-1])
    check = draw(st.sampled_from([[("check",)], []]))
    return [second, back, ("build",), *check, there, ("check",), back, ("build",), ("check",)]


STORIES = st.one_of(
    there_and_back(),
    st.lists(
        st.one_of(st.just(("build",)), st.just(("check",)), changes(), st.tuples(st.just("again"), st.integers(0, 3))),
        min_size=2,
        max_size=8,
    ),
)
KINDS = st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(BODIES)), st.sampled_from(sorted(WAYS)))


def tell(cls: Any, kind: tuple[str, str, str], story: list[Step]) -> None:
    """Run a story, and hold the law at each check and at the end."""
    run = Run(cls)
    for step in [("build",), *story, ("build",), ("check",)]:
        match step:
            case ("build",):
                run.build(*kind)
            case ("again", index):
                run.again(index)
            case ("change", what, index):
                run.change(what, CHANGES[what][index])
            case _:
                run.check()


LAW: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=2 * settings().max_examples, **LAW)
@given(KINDS, STORIES)
def test_programs_are_never_stale_and_fields_keep_their_values(kind: tuple[str, str, str], story: list[Step]) -> None:
    tell(Plainly, kind, story)


@settings(max_examples=2 * settings().max_examples, **LAW)
@given(KINDS, STORIES)
def test_static_law_with_identity(kind: tuple[str, str, str], story: list[Step]) -> None:
    tell(SameObject, kind, story)


@pytest.mark.parametrize(("form", "body"), list(itertools.product(sorted(FORMS), ["a global", "nothing"])))
def test_each_static_follows_a_change_and_its_reversal(form: str, body: str) -> None:
    for what in ("K", "config.v", "table['v']", "items[0]", "captures", "keywords", "attributes"):
        there, back = ("change", what, 1), ("change", what, 0)
        tell(Plainly, (form, body, "construction"), [("check",), there, ("build",), ("check",), back])


@pytest.mark.parametrize("mistaken", [ByCode, ByEquality])
def test_the_law_detects_wrong_keys(mistaken: Any) -> None:
    law: Any = given(st.just(mistaken), KINDS, STORIES)(tell)
    law = seed(3)(law)  # a draw that finds both soon
    law = settings(max_examples=2000, database=None, phases=[Phase.generate], report_multiple_bugs=False, **LAW)(law)

    with pytest.raises(AssertionError, match=r"^stale: |the field is another value"):
        law()
