"""Rules: what the package says about mistakes. A rule that fails never replaces the error that it would explain."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from treewright import Module, field


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnreadableDict(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def fail(value: Any) -> Any:
    raise TypeError(value)


class InMethod(Module):
    x: float

    def run(self) -> None:
        fail(Unreadable())


class InInit(Module):
    x: float

    def __init__(self) -> None:
        fail(Unreadable())


class InConverter(Module):
    x: Any = field(converter=fail)


@pytest.mark.parametrize(
    "run",
    [InMethod(1.0).run, InInit, lambda: InConverter(UnreadableDict(a=1))],
    ids=["in a method", "in an __init__", "in a converter"],
)
def test_an_error_with_a_value_that_has_no_text_stays_itself(run: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        run()
    assert type(caught.value.args[0]) in {Unreadable, UnreadableDict}


def test_the_note_on_a_converter_names_the_field_and_the_class_of_a_value_that_has_no_text() -> None:
    with pytest.raises(TypeError) as caught:
        InConverter(UnreadableDict(a=1))
    assert caught.value.__notes__ == [
        "Raised by the converter of InConverter.x, called with a UnreadableDict, <UnreadableDict object>."
    ]


class Flags(Module):
    is_training: bool
    size: int

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        if self.is_training:
            pass


def test_an_error_of_jax_in_a_method_that_a_constructor_calls_is_explained() -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.vmap(Flags)(jnp.array([True]), jnp.array([1]))
    notes = [note for note in caught.value.__notes__ if "static()" in note]
    assert [note.splitlines() for note in notes] == [
        [
            f"Flags.{name} is a child, so it is traced and has no value here. If it is a setting, make it static:",
            f"  {name}: {annotation} = static()",
        ]
        for name, annotation in [("is_training", "bool"), ("size", "int")]
    ]
