"""Built-in tuples: no class, no statics, no names."""

from typing import Any

NO_STATICS = True


def _tuple(**fields: Any) -> tuple[Any, ...]:
    return tuple(fields.values())


Norm = Attention = MLP = Eight = Block = _tuple
