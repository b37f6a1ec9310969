"""For the reference: what `doc=` says of a field is its docstring, and a private default is shown as `...`."""

import ast
import re
from typing import Any

import griffe


class FieldDocs(griffe.Extension):
    """Both are read from the source; nothing is imported."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give the attribute its docstring."""
        arguments = attr.value.arguments if isinstance(attr.value, griffe.ExprCall) else ()
        for argument in arguments:
            if isinstance(argument, griffe.ExprKeyword) and argument.name == "doc":
                attr.docstring = griffe.Docstring(ast.literal_eval(str(argument.value)), parent=attr)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show defaults that have no public name, such as `MISSING`, as `...`."""
        for parameter in func.parameters:
            if re.search(r"\b_\w|\bMISSING\b|\bUNSET\b", str(parameter.default)):
                parameter.default = "..."
