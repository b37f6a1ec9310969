"""For the reference: what `doc=` says of a field is the docstring of the attribute."""

import ast
from typing import Any

import griffe


class FieldDocs(griffe.Extension):
    """Reads it where the call of `field`, `static` or `buffer` stands; nothing is imported."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give the attribute its docstring."""
        arguments = attr.value.arguments if isinstance(attr.value, griffe.ExprCall) else ()
        for argument in arguments:
            if isinstance(argument, griffe.ExprKeyword) and argument.name == "doc":
                attr.docstring = griffe.Docstring(ast.literal_eval(str(argument.value)), parent=attr)
