"""Pydantic: how it builds a node from a dict or JSON."""

from typing import Any

from treewright._core.info import info_of
from treewright._core.instance import assign, run_init

_new: Any = object.__new__


def pydantic_schema(cls: type[Any], source: Any, handler: Any) -> Any:
    """Let pydantic validate the fields as those of a dataclass; then build the node from them.

    Pydantic itself would store them in the dict of an instance without running a constructor.
    """
    from pydantic_core import core_schema

    info = info_of(cls)
    if info.init_vars:  # Pydantic passes them only to its own call of `__post_init__`.
        return core_schema.is_instance_schema(cls)
    schema = handler(source)
    fields = handler.resolve_ref_schema(schema)

    def build(value: Any, validate: Any) -> Any:
        if isinstance(value, cls):
            return value
        node = _new(cls)
        values = {name: part for name, part in vars(validate(value)).items() if name in info.by_name}
        run_init(node, assign, values, () if info.runs_post_init else None)
        return node

    build.__name__ = build.__qualname__ = cls.__qualname__  # Errors print it.
    reference = fields.pop("ref", None)
    in_dict: Any = {**fields, "post_init": False, "slots": False}
    wrapped = core_schema.no_info_wrap_validator_function(build, in_dict, ref=reference)
    fields.clear()  # Changed in place, because the fields of a recursive class refer to it.
    fields.update(wrapped)
    return schema
