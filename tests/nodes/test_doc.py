"""`doc=`: what a field is, in words, and where that is shown."""

import pydoc

from treewright import Module, buffer, field, pytree_dataclass, static


@pytree_dataclass
class Layer:
    kernel: float = field(doc="f32[inputs, outputs].")
    width: int = static(default=3, doc="How many outputs.")
    mean: float = buffer(default=0.0, doc="Of the last batches,\n    weighted.")
    plain: float = 0.0


class Net(Module):
    """A network.

    With layers.
    """

    layer: Layer = field(doc="The only one.")
    name: str = static(default="net")


class Deeper(Net):
    depth: int = static(default=2, doc="How often.")


def shown(cls: type) -> str:
    return pydoc.plain(pydoc.render_doc(cls))


def test_what_doc_says_is_kept_with_the_field() -> None:
    assert [one.doc for one in vars(Layer)["__node_spec__"].fields] == [
        "f32[inputs, outputs].",
        "How many outputs.",
        "Of the last batches,\n    weighted.",
        None,
    ]


def test_help_shows_it_below_the_signature() -> None:
    assert Layer.__doc__ == (
        "Layer(kernel: float, width: int = 3, mean: float = 0.0, plain: float = 0.0)\n"
        "\n"
        "Attributes:\n"
        "    kernel: f32[inputs, outputs].\n"
        "    width: How many outputs.\n"
        "    mean: Of the last batches,\n"
        "        weighted."
    )
    assert " |      width: How many outputs.\n" in shown(Layer)


def test_help_shows_it_below_a_docstring() -> None:
    assert Net.__doc__ == "A network.\n\nWith layers.\n\nAttributes:\n    layer: The only one."


def test_help_shows_that_of_inherited_fields() -> None:
    assert Deeper.__doc__ == (
        "Deeper(layer: tests.nodes.test_doc.Layer, name: str = 'net', depth: int = 2)\n"
        "\n"
        "Attributes:\n"
        "    layer: The only one.\n"
        "    depth: How often."
    ).replace("tests.nodes.test_doc", Layer.__module__)


def test_a_decorator_that_follows_shows_it_once() -> None:
    class Below(Layer):
        """Below."""

        depth: int = field(default=2, doc="How often.")

    text = pytree_dataclass(Below).__doc__

    assert text is not None
    assert text.startswith("Below.\n\nAttributes:\n    kernel: f32")
    assert text.count("Attributes:") == text.count("depth: How often.") == 1


def test_a_class_without_doc_keeps_its_docstring_as_it_is() -> None:
    @pytree_dataclass
    class Plain:
        """As  written.

        Indented.
        """

        x: int

    written = type("Plain", (), {"__doc__": Plain.__doc__}).__doc__
    assert Plain.__doc__ == written
    assert Plain.__doc__ is not None
    assert "Attributes" not in Plain.__doc__
