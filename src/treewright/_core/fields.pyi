"""Types of `fields.py` for checkers: a specifier has the type of its default or of its converter's result, or Any."""

# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
# mypy: disable-error-code="unreachable"
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, overload, type_check_only

from typing_extensions import TypeVar

# mypy assumes that a variable of this name is true; other checkers read False. So mypy can see different definitions.
MYPY: Literal[False] = False
# The same for pyrefly; inside a group of overloads it evaluates only a name like this.
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False

class StaticValue(Protocol):
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@type_check_only
class NoStaticValue:
    """Appears in a checker's message if the declared type of a static field can't be static."""

AnyStatic: TypeAlias = StaticValue | type[Any] | Callable[..., Any] | None
S = TypeVar("S", bound=AnyStatic)
Declared = TypeVar("Declared", bound=AnyStatic, default=NoStaticValue)
T = TypeVar("T")
FieldKind: TypeAlias = Literal["child", "static", "buffer"]
AxisNames: TypeAlias = tuple[str | None, ...]
Sharding: TypeAlias = AxisNames | Callable[[Any], AxisNames | None]
Stack: TypeAlias = str | Callable[[Any], str | None]
MISSING: Any

SPECIFIERS: tuple[Any, ...]
OPTIONS: Mapping[str, Any]

def options_of(field: dataclasses.Field[Any]) -> Mapping[str, Any]: ...
def reject_field_on_class(value: Any) -> None: ...

# Each overload has all options of the table in `fields.py`: ty does not check `**options: Unpack[...]` of a TypedDict.
# fmt: off
@overload
def field(*, default: T, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
          metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def field(*, default_factory: Callable[[], T], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
          compare: bool = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def field(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
          hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
          kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: Callable[[Any], T]) -> T: ...
@overload
def field(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
          metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> Any: ...

# A static without a default gets its type from the declaration, which must be one of `AnyStatic`. pyright uses the
# declaration if the result is a bare type variable; mypy uses it if the result is anything else.
@overload
def static(*, identity: Literal[True], default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ...,
           repr: bool = ..., hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
           kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
           converter: Callable[[Any], Any] | None = ...) -> Any: ...
@overload
def static(*, default: S, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
           identity: Literal[False] = ..., converter: None = ...) -> S: ...
@overload
def static(*, default_factory: Callable[[], S], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
           compare: bool = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
           local: bool = ..., identity: Literal[False] = ..., converter: None = ...) -> S: ...
@overload
def static(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
           hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
           kw_only: bool = ..., doc: str | None = ..., local: bool = ..., identity: Literal[False] = ...,
           converter: Callable[[Any], S]) -> S: ...
if not TYPE_CHECKING_WITH_PYREFLY and not MYPY:
    @overload
    def static(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
               metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               identity: Literal[False] = ..., converter: None = ...) -> Declared: ...
elif not TYPE_CHECKING_WITH_PYREFLY:
    @overload
    def static(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
               metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               identity: Literal[False] = ..., converter: None = ...) -> Declared | Any: ...
else:  # pyrefly does not infer the type from the declaration.
    @overload
    def static(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
               metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               identity: Literal[False] = ..., converter: None = ...) -> Any: ...

@overload
def buffer(*, default: T, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def buffer(*, default_factory: Callable[[], T], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
           compare: bool = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ...,
           doc: str | None = ..., sharding: Sharding | None = ..., stack: Stack | None = ...,
           converter: None = ...) -> T: ...
@overload
def buffer(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
           hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
           kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: Callable[[Any], T]) -> T: ...
@overload
def buffer(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> Any: ...

# fmt: on
