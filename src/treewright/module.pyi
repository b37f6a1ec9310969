"""Types of `module.py` for checkers."""

# mypy: disable-error-code="unreachable"

import dataclasses
import sys
from abc import ABC
from collections.abc import Callable, Hashable, Iterable
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
    overload,
    type_check_only,
)

from treewright._core.fields import buffer, field, static

C = TypeVar("C", bound=type[Any])
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
# mypy assumes that a variable of this name is true; other checkers read False. So mypy can see different definitions.
MYPY: Literal[False] = False

@type_check_only
class HasReplace(Protocol[P, R_co]):
    """The `__replace__` with a dataclass's fields that checkers synthesise from Python 3.13 on."""

    def __replace__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

@type_check_only
class ReplaceMethod(Protocol):
    """`replace` as a method, for checkers: the parameters of `__replace__`, and the node's class as result."""

    def __get__(self, node: HasReplace[P, Any], owner: type[T], /) -> Callable[P, T]: ...

@overload
@dataclass_transform(
    frozen_default=True, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field)
)
def pytree_dataclass(cls: C, /) -> C: ...
@overload
def pytree_dataclass(
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = True,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Callable[[C], C]: ...

# `ABC`, because checkers need it to reject instances of abstract Modules; at run time Python needs no metaclass. Not
# frozen, because checkers reject assignments in the `__init__` of a frozen class. Without `eq_default=False` they would
# treat a class that is not frozen as unhashable, and so reject it as a static.
@dataclass_transform(eq_default=False, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field))
class Module(ABC):
    def __init_subclass__(cls, **keywords: Any) -> None: ...

    # From Python 3.13 on checkers synthesise a `__replace__` with the fields as parameters. For a class with a custom
    # `__init__`, pyright does not, and uses the one below.
    if sys.version_info >= (3, 13):
        replace: ClassVar[ReplaceMethod]

        def __replace__(self, /, **changes: Any) -> Self: ...
    else:
        def replace(self, /, **changes: Any) -> Self: ...

    # With this, ty rejects `del net.kernel`; other checkers can't.
    def __delattr__(self, name: str, /) -> NoReturn: ...
    def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]: ...
    @classmethod
    def tree_unflatten(cls, aux_data: object, children: Iterable[Any]) -> Self: ...

# Last, because mypy considers everything after it unreachable.
if MYPY:
    # mypy has a special case for this function: it checks names and types of fields on every Python version.
    from dataclasses import replace as replace
elif sys.version_info >= (3, 13):
    def replace(node: HasReplace[P, T], /, *args: P.args, **changes: P.kwargs) -> T: ...

else:
    def replace(node: T, /, **changes: Any) -> T: ...
