"""Errors about the arguments of a call that a function does not take: Python's own, with the cure."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from treewright._core.text import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
Cure = Callable[[tuple[Any, ...], Mapping[str, Any]], str]


def cured(cure: Cure) -> Callable[[F], F]:
    """A decorator: where Python refuses the arguments of a call, `cure(args, kwargs)` follows in the same `TypeError`.

    Errors from inside the function are not touched. `inspect` sees the function's own signature.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                entered = getattr(error.__traceback__, "tb_next", None) is not None
                if entered:
                    raise
                # Python 3.13 begins to guess the keyword that was meant.
                said = str(error).partition(". Did you mean")[0]
                meant = cure(args, kwargs)
                raise TypeError(f"{said}{'' if meant.startswith(' (') else '. '}{meant}") from None

        return cast("F", called)

    return decorate


def options_cure(*names: str, positional: str = "", **elsewhere: str) -> Cure:
    """The close match of an option that a function does not take, or all options; other libraries' names by ours."""

    def cure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if positional and len(args) > 1:
            return f"Write {positional}."
        unknown = [name for name in kwargs if name not in names]
        told = [f"Write {elsewhere[name]} instead of {name}=." for name in unknown if name in elsewhere]
        if told:
            return told[0]
        return with_guess(unknown, names, f"Its options: {', '.join(names)}.")

    return cure


def with_guess(unknown: Iterable[str], names: Sequence[str], cure: str) -> str:
    """The cure after the close match of the first unknown name that has one; it continues a sentence of Python's."""
    meant = next(filter(None, (did_you_mean(name, names) for name in unknown)), "")
    return f"{meant}. {cure}" if meant else cure
