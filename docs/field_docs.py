"""For the reference: `doc=` is the field's docstring; the specifier and private defaults are not shown."""

import ast
import re
from typing import Any

import griffe


class FieldDocs(griffe.Extension):
    """Both are read from the source; nothing is imported."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Add the docstring to the attribute, and omit its declaration."""
        if not isinstance(attr.value, griffe.ExprCall):
            return
        for argument in attr.value.arguments:
            if isinstance(argument, griffe.ExprKeyword) and argument.name == "doc":
                attr.docstring = griffe.Docstring(ast.literal_eval(str(argument.value)), parent=attr)
        if str(attr.value.function) in {"field", "static", "buffer"}:
            attr.value = None

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show defaults that have no public name, such as `MISSING`, as `...`."""
        for parameter in func.parameters:
            if re.search(r"\b_\w|\bMISSING\b|\bUNSET\b", str(parameter.default)):
                parameter.default = "..."
