"""The law of statics: a program is right if comparison by identity gives the right one; fields keep their values.

Each example is a short story of a user's module: statics are created, the values that they read change and change back,
the module is edited and run again, and in between every node goes through the caches of `jit`.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.nodes.static_generators import BODIES, CHANGES, FORMS, WAYS, ByCode, ByContent, ByEquality, Run, SameObject

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")]

Step = tuple[Any, ...]


TARGETS = st.one_of(st.just("K"), st.sampled_from(sorted(CHANGES)))


@st.composite
def changes(draw: st.DrawFn) -> Step:
    target = draw(TARGETS)
    return ("change", target, draw(st.sampled_from(range(len(CHANGES[target])))))


@st.composite
def round_trip(draw: st.DrawFn) -> list[Step]:
    """Create, change, trace, change back, recreate: the values are the original ones, the program is not."""
    target = draw(TARGETS)
    first, second = draw(st.permutations(range(len(CHANGES[target])))), ("change", target, 0)
    there, back = ("change", target, first[0]), ("change", target, first[-1])
    check = draw(st.sampled_from([[("check",)], []]))
    return [second, back, ("build",), *check, there, ("check",), back, ("build",), ("check",)]


STORIES = st.one_of(
    round_trip(),
    st.lists(
        st.one_of(
            st.just(("build",)), st.just(("check",)), changes(), st.tuples(st.just("rebuild"), st.integers(0, 3))
        ),
        min_size=2,
        max_size=8,
    ),
)
KINDS = st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(BODIES)), st.sampled_from(sorted(WAYS)))


def run_story(cls: Any, kind: tuple[str, str, str], story: list[Step]) -> None:
    """Run a story, and check the law at each check and at the end."""
    run = Run(cls)
    for step in [("build",), *story, ("build",), ("check",)]:
        match step:
            case ("build",):
                run.build(*kind)
            case ("rebuild", index):
                run.rebuild(index)
            case ("change", target, index):
                run.change(target, CHANGES[target][index])
            case _:
                run.check()


LAW: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=2 * settings().max_examples, **LAW)
@given(KINDS, STORIES)
def test_programs_are_never_stale_and_fields_keep_their_values(kind: tuple[str, str, str], story: list[Step]) -> None:
    run_story(ByContent, kind, story)


@settings(max_examples=2 * settings().max_examples, **LAW)
@given(KINDS, STORIES)
def test_identity_statics_follow_the_law(kind: tuple[str, str, str], story: list[Step]) -> None:
    run_story(SameObject, kind, story)


@pytest.mark.parametrize(("form", "body"), list(itertools.product(sorted(FORMS), ["a global", "nothing"])))
def test_each_static_follows_a_change_and_its_reversal(form: str, body: str) -> None:
    for target in ("K", "config.v", "table['v']", "items[0]", "captures", "keywords", "attributes"):
        there, back = ("change", target, 1), ("change", target, 0)
        run_story(ByContent, (form, body, "construction"), [("check",), there, ("build",), ("check",), back])


@pytest.mark.parametrize("mistaken", [ByCode, ByEquality])
def test_the_law_detects_wrong_keys(mistaken: Any) -> None:
    law: Any = given(st.just(mistaken), KINDS, STORIES)(run_story)
    law = seed(3)(law)  # this seed finds both quickly
    law = settings(max_examples=2000, database=None, phases=[Phase.generate], report_multiple_bugs=False, **LAW)(law)

    with pytest.raises(AssertionError, match=r"^stale: |the field has a different value"):
        law()
