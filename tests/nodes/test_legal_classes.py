"""Classes that are legal Python and lose nothing: each is a node class, without an error or a warning."""

import abc
import collections
import dataclasses
import enum
import functools
import textwrap
import typing
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, buffer, field, freeze, pytree_dataclass, static
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning

MODULES = (abc, collections, dataclasses, enum, functools, typing, jax, np)
OURS = (Module, buffer, field, freeze, pytree_dataclass, static, dataclasses.InitVar)
NAMES: dict[str, Any] = {
    **{module.__name__: module for module in MODULES},
    **{value.__name__: value for value in OURS},
    "jnp": jnp,
    "np": np,
    "Any": Any,
    "ClassVar": typing.ClassVar,
    "__name__": __name__,
}


def run(program: str) -> dict[str, Any]:
    """The names that a program defines."""
    names = dict(NAMES)
    exec(compile(textwrap.dedent(program), "<program>", "exec", dont_inherit=True), names)
    return names


# Each defines a class A; `A(2.0)` has the leaf 2.0, and the last line is true.
IDIOMS = {
    "a lookup table of functions": ("ACTS = {'relu': jax.nn.relu}", "A.ACTS['relu'] is jax.nn.relu"),
    "a list of names": ("NAMES = ['a', 'b']", "A.NAMES == ['a', 'b']"),
    "a set": ("MODES = {'train', 'eval'}", "'eval' in A.MODES"),
    "a numpy table": ("_FREQS = np.arange(4)", "A._FREQS.sum() == 6"),
    "a table of numpy arrays": ("TABLES = {'a': np.ones(2)}", "A.TABLES['a'].sum() == 2"),
    "a registry": (
        (
            "_registry = {}\ndef __init_subclass__(cls, **k):\n super().__init_subclass__(**k)\n"
            " A._registry[cls.__name__] = cls"
        ),
        "type('B', (A,), {}) is A._registry['B']",
    ),
    "a counter": ("counts = collections.Counter()", "A.counts == {}"),
    "a deque": ("recent = collections.deque(maxlen=3)", "len(A.recent) == 0"),
    "a defaultdict": ("hooks = collections.defaultdict(list)", "A.hooks['x'] == []"),
    "a number": ("EPS = 1e-5", "A.EPS == 1e-5"),
    "a string": ("kind = 'dense'", "A.kind == 'dense'"),
    "a tuple": ("SHAPE = (2, 3)", "A.SHAPE == (2, 3)"),
    "a dtype": ("dtype = jnp.float32", "A.dtype is jnp.float32"),
    "a type of numbers": ("dtype = float", "A.dtype is float"),
    "a class to create": ("inner_class = dict", "A.inner_class is dict"),
    "an alias of a type": ("Shape = tuple[int, ...]", "A.Shape == tuple[int, ...]"),
    "a nested class": ("class Config:\n width = 3", "A.Config.width == 3"),
    "a nested enum": ("class Mode(enum.Enum):\n TRAIN = 1", "A.Mode.TRAIN.value == 1"),
    "a nested node class": ("class Part(Module):\n y: float", "jax.tree.leaves(A.Part(1.0)) == [1.0]"),
    "a ClassVar of arrays": ("w: ClassVar[Any] = jnp.ones(2)", "A.w.sum() == 2"),
    "a function as constant": ("act = staticmethod(jax.nn.relu)", "float(a.act(-1.0)) == 0.0"),
    "a partial": ("norm = functools.partial(np.sum, axis=0)", "A.norm(np.ones(2)) == 2"),
    "a property": ("@property\ndef twice(self): return 2 * self.x", "a.twice == 4.0"),
    "a cached_property": ("@functools.cached_property\ndef twice(self): return 2 * self.x", "A.twice is not None"),
    "a static method": ("@staticmethod\ndef one(): return 1", "a.one() == 1"),
    "a class method": ("@classmethod\ndef two(cls): return cls(2.0)", "A.two() == a"),
    "a method with jit": ("@jax.jit\ndef twice(self): return 2 * self.x", "float(a.twice()) == 4.0"),
    "a nested function": ("def f(self):\n def g(): return self.x\n return g", "a.f()() == 2.0"),
    "a private helper named like a hook": (
        "def _init_(self): return self.x\ndef f(self): return self._init_()",
        "a.f() == 2.0",
    ),
    "a private helper that is looked up by name": (
        "def _call_(self): return self.x\ndef f(self): return getattr(self, '_call_')()",
        "a.f() == 2.0",
    ),
    "a mangled helper that is called": ("def __init(self): return 2\ndef f(self): return self.__init()", "a.f() == 2"),
    "a mangled helper of __post_init__": (
        "n: Any = 0\ndef __post_init__(self): self.__post_init()\ndef __post_init(self): self.n = 2",
        "a.n == 2",
    ),
    "a mangled helper in a comprehension": (
        "def __init(self, i): return i\ndef f(self): return [self.__init(i) for i in range(2)]",
        "a.f() == [0, 1]",
    ),
    "a mangled helper with a longer name": ("def __init_w(self): return 2", "a.x == 2.0"),
    "special names of another library": (
        "def __host_init__(self): return 1\ndef __unit__(self): return 2\ndef __finite__(self): return 3",
        "a.__host_init__() == 1",
    ),
    "special methods": ("def __len__(self): return 3\ndef __int__(self): return 4", "(len(a), int(a)) == (3, 4)"),
    "a protocol of jax": ("def __jax_array__(self): return jnp.asarray(self.x)", "float(jnp.add(a, 1)) == 3.0"),
    "an iterator": ("def __iter__(self):\n yield self.x", "list(a) == [2.0]"),
    "an own equality": ("def __eq__(self, other): return True\ndef __hash__(self): return 1", "a == 3"),
    "an own repr": ("def __repr__(self): return 'A'", "repr(a) == 'A'"),
    "a forwarding __getattr__": ("def __getattr__(self, name): return name", "a.missing == 'missing'"),
    "a check": ("def __check_init__(self): assert self.x > 0", "a.x == 2.0"),
    "a static with a default": ("n: int = static(default=3)", "a.n == 3"),
    "a converter": ("n: tuple = static(default=(), converter=tuple)", "a.n == ()"),
    "a factory": ("y: list = field(default_factory=list)", "a.y == []"),
}

PROGRAMS = {
    "an InitVar": "class A(Module):\n x: float = field(init=False)\n s: InitVar[float]\n"
    " def __post_init__(self, s): self.x = s\na = A(2.0)",
    "a __post_init__ that a helper of __init__ calls": "class A(Module):\n x: float\n def __init__(self, x):\n"
    "  self.x = x; self.finish()\n def finish(self): self.__post_init__()\n"
    " def __post_init__(self): self.x *= 1\na = A(2.0)",
    "a __post_init__ for subclasses": "class B(Module):\n x: float\n def __init__(self, x):\n"
    "  self.x = x; self.__post_init__()\n def __post_init__(self): pass\n"
    "class A(B):\n def __post_init__(self): self.x = 2.0\na = A(1.0)",
    "a __post_init__ that a generated __init__ of a base calls": "class B(Module):\n x: float\n"
    " def __post_init__(self): pass\nclass A(B):\n def __init__(self): super().__init__(2.0)\na = A()",
    "a generic": "T = typing.TypeVar('T')\nclass A(Module, typing.Generic[T]):\n x: T\na = A[float](2.0)",
    "a protocol": "class P(typing.Protocol):\n x: float\n scale: float = 1.0\nclass A(Module, P):\n x: float\n"
    " scale: ClassVar[float] = 1.0\na = A(2.0)",
    "a hook of a base": "class B(Module):\n x: float\n def __call__(self): return self._call_()\n"
    "class A(B):\n def _call_(self): return self.x\na = A(2.0)\nassert a() == 2.0",
    "an abstract method named like a hook": "class B(Module, abc.ABC):\n x: float\n @abc.abstractmethod\n"
    " def _init_(self): ...\n def f(self): return self._init_()\nclass A(B):\n"
    " def _init_(self): return self.x\na = A(2.0)\nassert a.f() == 2.0",
    "a method of a protocol named like a hook": "class P(typing.Protocol):\n def _call_(self): ...\n"
    "class A(Module, P):\n x: float\n def _call_(self): return self.x\na = A(2.0)",
    "abstract": "class B(Module, abc.ABC):\n @abc.abstractmethod\n def f(self): ...\nclass A(B):\n x: float\n"
    " def f(self): return 1\na = A(2.0)",
    "a mixin with methods and constants": "class Mix:\n LIMIT = 3\n rate: ClassVar[float] = 0.1\n needs: int\n"
    " def twice(self): return 2 * self.x\nclass A(Mix, Module):\n x: float\na = A(2.0)\nassert a.twice() == 4.0",
    "a mixin that declares a field of the node": "class Mix:\n x: float = 1.0\n"
    "class A(Mix, Module):\n x: float\na = A(2.0)",
    "a dataclass mixin": "@dataclasses.dataclass(frozen=True)\nclass Mix:\n x: float\n"
    "class A(Mix, Module):\n pass\na = A(2.0)",
    "a subclass that repeats all options": "class B(Module):\n x: float = field(converter=float)\nclass A(B):\n"
    " x: float = field(default=1.0, converter=float)\na = A(2)",
    "a constant of a base, replaced": "class B(Module):\n w: ClassVar[Any] = jnp.ones(2)\n"
    "class A(B):\n w = jnp.ones(3)\n"
    " x: float = 2.0\na = A()",
    "a constructor that is a class method": "class A(Module):\n x: float\n @classmethod\n"
    " def of(cls, x): return cls(2 * x)\na = A.of(1.0)",
    "a __new__ that only creates": "class A(Module):\n x: float\n"
    " def __new__(cls, *args): return super().__new__(cls)\na = A(2.0)",
    "keyword-only": "@pytree_dataclass(kw_only=True)\nclass A:\n x: float\n n: int = static(default=1)\na = A(x=2.0)",
}


@pytest.mark.parametrize("decorated", [False, True], ids=["Module", "decorated"])
@pytest.mark.parametrize(("body", "holds"), IDIOMS.values(), ids=[*IDIOMS])
def test_a_legal_class_body_is_a_node_class(body: str, holds: str, decorated: bool) -> None:
    head = "@pytree_dataclass\nclass A:\n" if decorated else "class A(Module):\n"
    if decorated and "type('B'" in holds:
        pytest.skip("the registry of a decorated class sees subclasses before they are decorated")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = run(f"{head}{textwrap.indent('x: float' + chr(10) + body, ' ')}\na = A(2.0)")

        assert jax.tree.leaves(names["a"])[0] == 2.0
        assert eval(holds, names)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=[*PROGRAMS])
def test_a_legal_hierarchy_is_a_node_class(program: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = run(program)

    assert jax.tree.leaves(names["a"]) == [2.0]


# What loses something: the program, and the error or warning.

DENSE = "class Dense(Module):\n w: Any\n def __call__(self, x): return x\n"
REJECTED = {
    "a node": (f"{DENSE}class A(Module):\n d = Dense(jnp.ones(2))", r"A\.d = Dense.* has no annotation"),
    "a tuple of arrays": (
        "class A(Module):\n d = (jnp.ones(2),)",
        r"A\.d = .* has no annotation(?s:.*)d: tuple = field",
    ),
    "a dict of arrays": ("class A(Module):\n d = {'a': jnp.ones(2)}", r"A\.d = .* has no annotation"),
    "an optimiser's state": (
        "import optax\nclass A(Module):\n d = optax.adam(1.0).init(jnp.ones(2))",
        r"A\.d = .* no ann",
    ),
    "a layer of equinox": (
        "import equinox\nclass A(Module):\n d = equinox.nn.Linear(2, 2, key=jax.random.key(0))",
        r"A\.d = .* has no annotation",
    ),
    "a layer of nnx": (
        "from flax import nnx\nclass A(Module):\n d = nnx.Linear(2, 2, rngs=nnx.Rngs(0))",
        r"A\.d = .* no ann",
    ),
    "a generator": (
        "class A(Module):\n x: float\n def __post_init__(self):\n  yield",
        r"A\.__post_init__ is a generator",
    ),
    **{
        f"misspelt {name}": (
            f"class A(Module):\n x: float\n def {name}(self): pass",
            rf"never runs\. Did you mean {hook}\?",
        )
        for name, hook in {
            **dict.fromkeys(("__inti__", "__intit__", "__initi__", "__ini__"), "__init__"),
            **dict.fromkeys(("__post_inti__", "__postinit__", "__post_int__", "__post__init__"), "__post_init__"),
            **dict.fromkeys(("__checkinit__", "__check_int__", "__chek_init__"), "__check_init__"),
        }.items()
    },
}


@pytest.mark.parametrize(("program", "message"), REJECTED.values(), ids=[*REJECTED])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_class_that_loses_a_value_or_a_method_is_rejected(program: str, message: str) -> None:
    with pytest.raises(NodeDefinitionError, match=message):
        run(program)


OWN_INIT = "class B(Module):\n x: float\n def __init__(self, x): self.x = x\n"
WARNED = {
    **{
        f"a helper named {name}": (
            f"class A(Module):\n x: float\n def {name}(self): return self.x\nassert A(2.0).{name}() == 2.0",
            rf"^Nothing calls A\.{name} in its class\. Did you mean _{name}_\?",
        )
        for name in ("_init_", "_post_init_", "_check_init_", "_call_")
    },
    "in the class": (
        "class A(Module):\n x: float\n def __init__(self, x): self.x = x\n def __post_init__(self): pass",
        r"^A\.__post_init__ never runs",
    ),
    "in a subclass": (f"{OWN_INIT}class A(B):\n def __post_init__(self): pass", r"^A\.__post_init__ never runs"),
    "in a mixin": (
        f"{OWN_INIT}class Mix:\n def __post_init__(self): pass\nclass A(Mix, B):\n pass",
        r"^A\.__post_init__ nev",
    ),
    "beside super().__init__": (
        (f"{OWN_INIT}class A(B):\n def __init__(self): super().__init__(1.0)\n def __post_init__(self): pass"),
        r"^A\.__post_init__ never runs",
    ),
    "a mixin's annotated value": (
        "class Rate:\n rate: float = 0.1\nclass A(Rate, Module):\n x: float",
        r"^Rate\.rate is not a field of A.*@pytree_dataclass, or write rate: ClassVar",
    ),
}


@pytest.mark.parametrize(("program", "message"), WARNED.values(), ids=[*WARNED])
def test_a_part_of_a_class_without_effect_is_warned_of_once(program: str, message: str) -> None:
    with pytest.warns(NodeDefinitionWarning, match=message) as caught:
        run(f"{program}\nclass Below(A):\n pass" if "Rate" in program else program)

    assert [warning.filename for warning in caught] == ["<program>"]


def test_an_init_var_has_no_value_on_an_instance() -> None:
    names = run(
        "class A(Module):\n x: float\n s: InitVar[float] = 1.0\n def __post_init__(self, s): self.x *= s\n"
        "class B(A):\n s: InitVar[float]\n"
    )

    for cls in (names["A"], names["B"]):
        assert (cls(2.0, s=5.0).x, cls(2.0).x, cls.s) == (10.0, 2.0, 1.0)
        with pytest.raises(AttributeError, match=r"^[AB]\.s is an InitVar: .* Use the parameter of __post_init__"):
            _ = cls(2.0, s=5.0).s


def test_an_error_whose_text_fails_is_raised_as_it_is() -> None:
    names = run(
        "class E(Exception):\n def __str__(self): raise RuntimeError('no text')\n"
        "class A(Module):\n x: float\n def __init__(self): raise E\n"
    )

    with pytest.raises(names["E"]):
        names["A"]()


def test_an_assignment_in_new_names_new() -> None:
    names = run(
        "class A(Module):\n x: float\n def __new__(cls, x):\n"
        "  self = super().__new__(cls)\n  self.x = x\n  return self\n"
    )

    with pytest.raises(AttributeError, match=r"no __init__ has finished it\. Assign the fields in __init__"):
        names["A"](1.0)


def test_a_class_that_is_registered_for_export_keeps_its_registration() -> None:
    program = """
    import jax.export
    class C:
        x: float
    jax.export.register_pytree_node_serialization(
        C, serialized_name="before", serialize_auxdata=lambda data: b"", deserialize_auxdata=lambda data: None,
        from_children=lambda data, children: None,
    )
    a = pytree_dataclass(C)(2.0)
    """

    assert jax.tree.leaves(run(program)["a"]) == [2.0]
