"""What notebooks show of a node: treescope's page, the text, or what its class says."""

import html
import sys
from typing import Any

import jax.numpy as jnp
import pytest

from treewright import Module, field, pytree_dataclass, static

# treescope reads all of numpy on first use, what numpy means to remove included.
uses_treescope = pytest.mark.filterwarnings("ignore::DeprecationWarning:numpy", "ignore:The chararray class")


@pytree_dataclass
class Box:
    value: Any = field()


class Net(Module):
    layers: Any
    name: str = static()


def net() -> Net:
    return Net([Box("x" * 40), Box(jnp.ones((784, 128)))], name="<b>")


def in_a_notebook(node: Any) -> str:
    """What IPython shows of an object: it asks the object, and not its class, for the method."""
    show = getattr(node, "_repr_html_", None)
    assert callable(show)
    return str(show())


def test_without_treescope_a_notebook_shows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)
    shown = in_a_notebook(net())
    assert shown == f"<pre>{html.escape(repr(net()))}</pre>"
    assert "name=&#x27;&lt;b&gt;&#x27;" in shown


def test_a_notebook_shows_what_a_class_says_of_itself() -> None:
    class Own(Module):
        value: Any

        def __repr__(self) -> str:
            return "<own>"

    @pytree_dataclass
    class OwnPage:
        value: Any

        def _repr_html_(self) -> str:
            return "<b>own</b>"

    assert in_a_notebook(Own(1)) == "<pre>&lt;own&gt;</pre>"
    assert in_a_notebook(OwnPage(1)) == "<b>own</b>"
