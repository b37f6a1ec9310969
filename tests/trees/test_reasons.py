"""Why two values differ that may look alike, and what values look like at a readable length."""

from __future__ import annotations

import functools
import math
import pickle
import re
from typing import TYPE_CHECKING, Any, Never

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright._core.text import short_text, short_texts
from treewright._trees.snapshot import remembered
from treewright._trees.why import cause_of, same_to_jit, why

if TYPE_CHECKING:
    from collections.abc import Callable


class Plain:
    def __init__(self, size: int = 1) -> None:
        self.size = size

    def method(self) -> None: ...

    def other(self) -> None: ...


class Raising:
    def __eq__(self, other: object) -> Never:
        raise ValueError("no\n  comparison")

    __ne__ = __eq__

    def __hash__(self) -> int:
        return 0


class Shown:
    """Compares by a number that its text does not show."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and self.number == other.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return "shown"


class Alike:
    def __repr__(self) -> str:
        return "shown"


def classes() -> list[type[Any]]:
    """Two classes of one name."""

    def make() -> type[Any]:
        class Twice: ...

        return Twice

    return [make(), make()]


def closure(first: Any, second: Any = 0) -> Callable[[], Any]:
    return lambda: (first, second)


def functions_of_one_name() -> list[Callable[[], int]]:
    def one() -> Callable[[], int]:
        def same() -> int:
            return 1

        return same

    def two() -> Callable[[], int]:
        def same() -> int:
            return 2

        return same

    for function in (found := [one(), two()]):
        function.__code__ = function.__code__.replace(co_qualname="same")
    return found


class Wrapper:
    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


TWICE = "its class statement ran twice, as in a notebook cell that runs again, a reloaded module or a function"

CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "texts say it all": (lambda: ("relu", "gelu"), ""),
    "two classes of one name": (
        lambda: (classes()[0], classes()[1]),
        rf"two classes are named classes\.<locals>\.make\.<locals>\.Twice: {TWICE}",
    ),
    "objects of two classes of one name": (
        lambda: (classes()[0](), classes()[1]()),
        rf"two classes are named classes\.<locals>\.make\.<locals>\.Twice: {TWICE}",
    ),
    "two classes": (lambda: (Plain, Shown), ""),
    "the same text of another class": (lambda: (Shown(1), Alike()), "same text, but Shown -> Alike"),
    "the same text of a class of the same name elsewhere": (
        lambda: (Shown(1), type("Shown", (), {"__repr__": Shown.__repr__, "__module__": "elsewhere"})()),
        r"same text, but \S*test_reasons\.Shown -> elsewhere\.Shown",
    ),
    "the same text of the same class": (
        lambda: (Shown(1), Shown(2)),
        "another Shown with the same text, and not equal to it",
    ),
    "a closure": (
        lambda: (closure(1), closure(2)),
        r"made anew by the same code \(test_reasons\.py:\d+\), which captured first: 1 -> 2",
    ),
    "a closure over the same": (
        lambda: (closure(1), closure(1)),
        r"made anew by the same code \(test_reasons\.py:\d+\), which captured the same first, second",
    ),
    "a closure over closures": (
        lambda: (closure(closure((1, 2))), closure(closure((1, 3)))),
        r"made anew by the same code .*, which captured first\.first\[1\]: 2 -> 3",
    ),
    "two functions of one name": (
        lambda: (functions_of_one_name()[0], functions_of_one_name()[1]),
        r"two functions, defined at test_reasons\.py:\d+ and test_reasons\.py:\d+",
    ),
    "two functions": (lambda: (classes, closure), ""),
    "a function and something else": (lambda: (classes, 1), ""),
    "another method": (lambda: (Plain().method, Plain().other), ""),
    "a method of another object": (lambda: (Plain().method, Plain().method), "the same method of another object"),
    "a partial of the same": (
        lambda: (functools.partial(max, 1, key=abs), functools.partial(max, 1, key=abs)),
        "a partial made anew of the same function and arguments; it has no ==",
    ),
    "a partial of something else": (lambda: (functools.partial(max, 1), functools.partial(max, 2)), ""),
    "a bare partial of a function made anew": (
        lambda: (functools.partial(closure(1)), functools.partial(closure(2))),
        "made anew by the same code .*, which captured first: 1 -> 2",
    ),
    "a function jitted anew": (lambda: (jax.jit(closure), jax.jit(closure)), "the same function, wrapped anew by jit"),
    "a function wrapped anew": (lambda: (Wrapper(max), Wrapper(max)), "the same function, wrapped anew by Wrapper"),
    "another function jitted": (
        lambda: (jax.jit(closure(1)), jax.jit(closure(2))),
        "made anew by the same code .*, which captured first: 1 -> 2",
    ),
    "NaN": (lambda: (math.nan, float("nan")), "NaN equals nothing, not even another NaN"),
    "an __eq__ that raises": (
        lambda: (Raising(), Raising()),
        "== between them gives no answer: ValueError: no comparison",
    ),
    "an object without __eq__": (
        lambda: (Plain(1), Plain(2)),
        "Plain has no __eq__, so each instance is a value of its own; here size: 1 -> 2",
    ),
    "an object without __eq__ and with the same attributes": (
        lambda: (Plain(1), Plain(1)),
        "Plain has no __eq__, so each instance is a value of its own; the attributes of these two print the same",
    ),
}


SLOPE, HELPER = 0.1, len


def reading(offset: Any = 0) -> Callable[[Any], Any]:
    return lambda x: HELPER(x) * SLOPE + offset


def reading_more(offset: Any = 0) -> Callable[[Any], Any]:
    return lambda x: (closure(x, SLOPE), offset)


def test_a_function_made_anew_is_explained_by_the_globals_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    place = r"made anew by the same code \(test_reasons\.py:\d+\), which"
    old = remembered(reading())

    assert re.fullmatch(rf"{place} captured the same offset", why(old, reading()))
    monkeypatch.setitem(globals(), "SLOPE", 0.5)
    assert re.fullmatch(rf"{place} reads the global SLOPE: 0\.1 -> 0\.5", why(old, reading()))
    text = rf"{place} captured offset: 0 -> 1 and reads the global SLOPE: 0\.1 -> 0\.5"
    assert re.fullmatch(text, why(old, reading(1)))


def test_a_function_among_the_globals_is_remembered_without_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    old = remembered(reading_more())

    assert list(old.facts.read) == ["closure", "SLOPE"]
    assert old.facts.read["closure"].facts.held == {}
    monkeypatch.setitem(globals(), "closure", classes)
    assert (
        "and reads the global closure: closure -> classes" in f"and {why(old, reading_more()).rpartition('which ')[2]}"
    )


def test_a_function_that_only_reads_says_what() -> None:
    functions = [eval("lambda x: x * SLOPE", globals()) for _ in range(2)]
    functions[1].__code__ = functions[0].__code__

    assert why(*functions).endswith("which reads the global SLOPE: nobody can tell for how long")


@pytest.mark.parametrize("keep", [lambda value: value, remembered], ids=["live", "remembered"])
@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_given_where_values_look_alike(name: str, keep: Any) -> None:
    make, reason = CASES[name]
    left, right = make()

    assert re.fullmatch(reason, why(keep(left), keep(right)), re.DOTALL), why(keep(left), keep(right))


def test_a_variable_that_is_not_bound_yet_is_left_out() -> None:
    def make() -> Any:
        def early() -> Any:
            return later

        found = early, remembered(early)
        later = 1
        return found[0]

    assert "made anew by the same code" in why(make(), make())


def test_arrays_give_no_answer() -> None:
    assert why(np.ones(2), np.ones(2)).startswith("== between them gives no answer: ValueError: The truth value of an")


def test_what_is_remembered_can_not_be_called() -> None:
    partial: Any = remembered(functools.partial(closure(1)))

    with pytest.raises(TypeError, match=r"<lambda at test_reasons\.py:\d+> is only remembered"):
        partial()


def test_a_value_that_can_not_be_compared_is_another_one() -> None:
    assert not same_to_jit(Raising(), Raising())
    assert not same_to_jit(jnp.ones(2), jnp.ones(2))


def test_texts_are_short_and_differ_where_values_do() -> None:
    long = "x" * 300

    assert short_text({"a": [1] * 50, "b": 2}) == "{'a': [1, 1, 1, 1, 1, 1, ...], 'b': 2}"
    assert len(short_text({f"key {n}": long for n in range(9)})) == 80
    assert short_text(functools.partial(max, 1, key=abs)) == "partial(max, 1, key=abs)"
    assert short_texts(f"{long}a{long}", f"{long}b{long}") == (
        "...'xxxxxxxxxxxxxaxxxxxxxxxxxxxxxxxxxxxxxxxx'... at character 287",
        "...'xxxxxxxxxxxxxbxxxxxxxxxxxxxxxxxxxxxxxxxx'... at character 287",
    )
    assert short_texts("\n" * 90, "\n" * 91) == (
        f"...{chr(10) * 13!r} at character 77",
        f"...{chr(10) * 14!r} at character 77",
    )
    assert short_texts(classes, closure) == ("classes", "closure")


def test_a_cause_is_named_for_those_who_know_a_remedy() -> None:
    cause = cause_of(math.nan, float("nan"))

    assert cause is not None
    assert cause.name == "nan"


def test_a_reason_can_be_pickled() -> None:
    reason = why(float("nan"), float("nan"))

    copied = pickle.loads(pickle.dumps(reason))

    assert copied == reason
    assert copied.name == "nan"
