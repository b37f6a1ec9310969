"""Programs for the law of statics: a user's module that changes while it runs, and the statics that it creates.

A world is a namespace, as a module or a notebook has one. Its functions read globals, a module of settings, captures,
defaults and attributes. Each of these can be set to a different value and back, and each static can be recreated.
Attributes of a class are part of no key, so no story changes one that a part of a partial reads.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import sys
import types
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

import treewright
from treewright import Module, at, replace, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable

# The body of a function of x, by the values that it reads.
BODIES = {
    "nothing": "x * 3",
    "a global": "x * K",
    "a helper": "helper(x)",
    "a jitted helper": "jitted(x)",
    "a helper that jax mapped": "mapped(x[None])[0]",
    "a helper that functools dispatches": "dispatched(x)",
    "a module": "settings.RATE * x",
    "an imported module": "__import__('law_settings').RATE * x",
    "a module by from": "rate_of(x)",
    "an object": "config.v * x",
    "a dict": "table['v'] * x",
    "a class": "Cls.FACTOR * x",
    "a built-in": "abs(x)",
    "a library": "jnp.cos(x)",
    "a library under an alias": "ops.cos(x)",
    "a library's function under an alias": "act(x)",
    "a constant of a library": "x * jnp.pi",
    "a global in a nested function": "(lambda y: y * K)(x)",
    "a global by eval": "eval('K') * x",
    "globals()": "globals()['K'] * x",
}

# The code that turns such a function into a static.
FORMS = {
    "lambda": "return lambda x: BODY",
    "def": "def f(x):\n        return BODY\n    return f",
    "default": "return lambda x, c=K: (BODY) * c",
    "keyword default": "def f(x, *, c=K):\n        return (BODY) * c\n    return f",
    "default that is an object": "return lambda x, c=config: (BODY) * c.v",
    "default that is a function": "return lambda x, c=helper: (BODY) + c(x)",
    "capture": "c = K\n    return lambda x: (BODY) * c",
    "capture of an object": "c = config\n    return lambda x: (BODY) * c.v",
    "capture of a function": "c = lambda x: BODY\n    return lambda x: c(x) + 1",
    "capture that is assigned": (
        "c = K\n    def assign(v):\n        nonlocal c\n        c = v\n    setters.append(assign)\n"
        "    return lambda x: (BODY) * c"
    ),
    "attribute": "def f(x):\n        return (BODY) * f.c\n    f.c = K\n    return f",
    "wraps": "g = lambda x: BODY\n    return functools.wraps(g)(lambda x: g(x) + 1)",
    "partial": "return functools.partial(lambda c, x: (BODY) * c, K)",
    "partial of an object": "return functools.partial(lambda c, x: (BODY) * c.v, config)",
    "partial of data": "return functools.partial(lambda c, x: (BODY) * c.v, Data(K))",
    "partial of a method of a list": "return functools.partial(lambda get, x: x * get(0), items.__getitem__)",
    "object that takes a jitted function's attributes": "return Timed(jax.jit(lambda x: BODY), K)",
    "jit": "return jax.jit(lambda x: BODY)",
    "checkpoint": "return jax.checkpoint(lambda x: BODY)",
    "mapping": "return treewright.freeze({'f': lambda x: BODY})",
    "node": "return treewright.Static(lambda x: BODY)",
    "method": "class Plain:\n        def scale(self, x):\n            return BODY\n    return Plain().scale",
    "method of data": "return Data(K).scale",
    "method of data that reads its class": "return Data(1).by_class",
    "method of a node": "return Layer(K).scale",
    "callable": "return Plain()",
    "callable tuple that unpacks less": "return Unpacked(0.0, 1.0, K)",
    "callable number that is false": "return Rate(K)",
    "callable that compares by a part": "return Compared(1, K)",
    "object with a private slot": "return Slotted(1).hiding(K)",
    "method of an object with a private slot": "return Slotted(1).hiding(K).scale",
    "class of a metaclass": "return made(K)",
    "member of an enum of numbers": "return Bits.A if K == 2 else Bits.B",
    "set constant": "return eval('''lambda x: (BODY) * [i for i in {8, %d}][0]''' % (0 if K == 2 else 16))",
    "method and its callee": "trainer.act = lambda x: BODY\n    return (trainer.forward, trainer.act)",
    "partial and its argument": "c = lambda x: BODY\n    return (functools.partial(lambda f, x: f(x) + 1, c), c)",
    "optimiser and the value in its dict": (
        "held['act'] = lambda x: BODY\n    return (optax.masked(optax.identity(), held).update, held['act'])"
    ),
    "callable data": "return Data(K)",
    # Each of these is at the edge of the types that are compared by value, or beyond it.
    "method of a list, written in C": "return Holding(items.__getitem__, at_zero)",
    "method of a number, written in C": "return Holding((K).__add__, at_zero)",
    "method of one name of two classes": "return Holding((int if K == 2 else bool).__and__.__get__(True), at_one)",
    "row of a structured array": "return Holding(row(K), in_row)",
    "numpy scalar with an attribute": "return Holding(noted(NumpyInt(1), K), note_of)",
    "str with an attribute": "return Holding(noted(Text('a'), K), note_of)",
    "named tuple that gets an attribute": "return noticing(Noticed(1))",
    "union": "return Holding(int | float if K == 2 else float | int, first_type)",
    "type with type arguments": "return Holding(tuple[1] if K == 2 else tuple[True], first_type)",
    "UUID": "return Holding(uuid.UUID(int=K), number_of)",
    "dtype with metadata": "return Holding(np.dtype('f4', metadata={'v': K}), metadata_of)",
    "subclass of partial": "return noted(SubPartial(times_note, K), K)",
    "partial whose keywords change": "return functools.partial(times, k=K)",
    "object that is not frozen": "return Changing(K)",
    "undecorated subclass of data": "return noted(SubData(K), K)",
}

# The module in parts, by a name that each defines. A story runs the parts that it uses: classes are slow to make, and
# JAX keeps those that are registered.
PARTS = {
    "K": """
import dataclasses, enum, functools, typing
import jax
import jax.numpy as jnp
import optax
import treewright

held = {"act": None, "other": object()}
K = 2
table = {"v": 2}
items = [2]

class Config:
    v = 2

config = Config()

class Cls:
    FACTOR = 2

def rate_of(x):
    from law_settings import RATE
    return x * RATE

def helper(x):
    return x * K

def deep(x):
    return helper(x)
""",
    "Plain": """
class Plain:
    def scale(self, x):
        return x * K
    __call__ = scale
""",
    "Data": """
@dataclasses.dataclass(frozen=True)
class Data:
    v: float
    def scale(self, x):
        return x * self.v * K
    def by_class(self, x):
        return x * self.v * Data.__dict__.get("FACTOR", 2)
    __call__ = scale
""",
    "Unpacked": """
class Stats(typing.NamedTuple):
    mean: float
    std: float
    eps: float
class Unpacked(Stats):
    def __iter__(self):
        return iter(self[:2])
    def __call__(self, x):
        return x * self.eps
""",
    "Rate": """
class Rate(float):
    def __bool__(self):
        return False
    def __call__(self, x):
        return x * float.__float__(self)
""",
    "Compared": """
class Compared(tuple):
    def __new__(cls, *parts):
        return tuple.__new__(cls, parts)
    def __str__(self):
        return "Compared"
    def __getitem__(self, index):
        return 1
    def __len__(self):
        return 1
    def __call__(self, x):
        return x * tuple.__getitem__(self, 1)
""",
    "Slotted": """
@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("k", "__hidden")
    k: int
    def hiding(self, value):
        object.__setattr__(self, "_Slotted__hidden", value)
        return self
    def scale(self, x):
        return x * self.__hidden
    __call__ = scale
""",
    "Holding": """
import uuid
import numpy as np
@dataclasses.dataclass(frozen=True)
class Holding:
    value: object
    read: object
    def __call__(self, x):
        return x * self.read(self.value)
def at_zero(get):
    return get(0)
def at_one(get):
    return get(1)
def in_row(row):
    return row["v"]
def row(value):
    rows = np.array([(value,)], [("v", int)])
    rows.flags.writeable = False
    return rows[0]
def note_of(value):
    return value.note
def first_type(value):
    return 2 if value.__args__[0] in (int, 1) and value.__args__[0] is not True else 3
def number_of(value):
    return value.int
def metadata_of(value):
    return value.metadata["v"]
class NumpyInt(np.int64):
    pass
class Text(str):
    pass
""",
    "noted": """
def noted(value, note):
    object.__setattr__(value, "note", note)
    return value
""",
    "Noticed": """
class Point(typing.NamedTuple):
    k: int
class Noticed(Point):
    def __call__(self, x):
        return x * vars(self).get("note", 2)
def noticing(value):
    setters.append(lambda v: setattr(value, "note", v))
    return value
""",
    "SubPartial": """
class SubPartial(functools.partial):
    def __call__(self, x):
        return x * self.note
def times_note(k, x):
    return x * k
""",
    "times": """
def times(x, *, k):
    return x * k
""",
    "Changing": """
@dataclasses.dataclass(unsafe_hash=True)
class Changing:
    v: int
    def __call__(self, x):
        return x * self.v
""",
    "SubData": """
@dataclasses.dataclass(frozen=True)
class Base:
    v: int
class SubData(Base):
    def __call__(self, x):
        return x * self.v * self.note
""",
    "made": """
class Meta(type):
    def __eq__(cls, other):
        return isinstance(other, Meta)
    def __hash__(cls):
        return 1
def made(value):
    @dataclasses.dataclass(frozen=True)
    class Made(metaclass=Meta):
        k: int
        def __call__(self, x):
            return x * value
    return Made(1)
""",
    "Bits": """
class Bits(int, enum.Enum):
    def __new__(cls, bits, factor):
        made = int.__new__(cls, bits)
        made._value_ = factor
        return made
    A = (16, 2)
    B = (16, 3)
    def __call__(self, x):
        return x * self.value
""",
    "trainer": """
class Logger:
    pass
@dataclasses.dataclass(unsafe_hash=True)
class Trainer:
    act: object
    logger: object
    def forward(self, x):
        return self.act(x) + 1
trainer = Trainer(None, Logger())
""",
    "Timed": """
class Timed:
    def __init__(self, function, factor):
        functools.update_wrapper(self, function)
        self.factor = factor
    def __call__(self, x):
        return self.__wrapped__(x) * self.factor
""",
    "Layer": """
class Layer(treewright.Module):
    v: float = treewright.static()
    def scale(self, x):
        return x * self.v * K
""",
    "jitted": """
@jax.jit
def jitted(x):
    return x * K
""",
    "mapped": """
@jax.vmap
def mapped(x):
    return x * K
""",
    "dispatched": """
@functools.singledispatch
def dispatched(x):
    return x * K
""",
}

# The values that can change, and their new values.
NUMBERS = (2, 3, 4)
CHANGES: dict[str, tuple[Any, ...]] = {
    "K": NUMBERS,
    "settings.RATE": NUMBERS,
    "config.v": NUMBERS,
    "table['v']": NUMBERS,
    "items[0]": NUMBERS,
    "Cls.FACTOR": NUMBERS,
    "ops": (jnp, jax.lax),
    "act": (jnp.sin, jnp.cos),
    "abs": (abs, lambda x: x * 5, lambda x: x * 7),
    "helper": ("def helper(x):\n    return x * K", "def helper(x):\n    return x + K"),
    "jitted": ("@jax.jit\ndef jitted(x):\n    return x * K", "@jax.jit\ndef jitted(x):\n    return x + K"),
    "captures": NUMBERS,
    "defaults": NUMBERS,
    "keywords": NUMBERS,
    "attributes": NUMBERS,
    "everything, run again": ("",),
}
CHANGED_IN_PLACE = {"object that is not frozen", "named tuple that gets an attribute"}
# After these, the law holds only for nodes that are created later: names of libraries and built-ins are rebound, or a
# function itself is changed.
REBINDINGS = {"ops", "abs", "defaults", "keywords"}


def change_default(target: Any, value: Any) -> None:
    if isinstance(target, types.FunctionType) and target.__defaults__ and len(target.__defaults__) == 1:
        default = target.__defaults__[0]
        target.__defaults__ = (value,) if isinstance(default, int) else (default,)


def change_keyword(target: Any, value: Any) -> None:
    if isinstance(target, functools.partial) and "k" in target.keywords:
        target.keywords["k"] = value


def change_attribute(target: Any, value: Any) -> None:
    if type(target).__name__ == "Changing":
        target.v = value


# Changes in place of a static after its creation.
IN_PLACE: dict[str, Callable[[Any, Any], None]] = {
    "defaults": change_default,
    "keywords": change_keyword,
    "attributes": change_attribute,
}


@functools.cache
def compiled(source: str) -> types.CodeType:
    return compile(source, "world.py", "exec")


class World:
    """A namespace that creates and changes statics."""

    def __init__(self) -> None:
        settings, module = types.ModuleType("law_settings"), types.ModuleType("law_world")
        vars(settings)["RATE"] = 2
        self.names: dict[str, Any] = vars(module)
        self.names["settings"] = settings
        sys.modules.update({"law_world": module, "law_settings": settings})
        self.parts: dict[str, None] = {}
        self.use("K")
        self.names.update(ops=jnp, act=jnp.sin, setters=[])

    def use(self, source: str) -> None:
        """Run the parts that a source needs and that have not run yet."""
        for name in PARTS.keys() - self.parts.keys():
            if re.search(rf"\b{name}\b", source):
                self.parts[name] = None
                exec(compiled(PARTS[name]), self.names)

    def make(self, form: str, body: str) -> Any:
        """A static, recreated by the same code."""
        source = f"def make():\n    {FORMS[form].replace('BODY', BODIES[body])}"
        self.use(source)
        exec(compiled(source), self.names)
        return self.names["make"]()

    def change(self, target: str, value: Any, statics: list[Any]) -> None:
        """Assign, edit and run again, or change in place."""
        self.use(target)
        if target == "everything, run again":
            for name in self.parts:
                exec(compiled(PARTS[name]), self.names)
        elif target in IN_PLACE:
            for each in statics:
                IN_PLACE[target](each, value)
        elif target == "captures":
            for assign in self.names["setters"]:
                assign(value)
        elif isinstance(value, str):
            exec(compiled(value), self.names)
        else:
            self.names["new"] = value
            exec(compiled(f"{target} = new"), self.names)


def call_static(static_value: Any, x: Any) -> Any:
    """The result of a static, unwrapped."""
    value: Any = static_value
    if type(value) is tuple:
        return [part for part in value if callable(part)][-1](x)
    if isinstance(value, treewright.FrozenMapping):
        return value["f"](x)
    if isinstance(value, treewright.Static | Same):
        return call_static(value.value, x)
    return value(x)


class ByContent(Module):
    x: Any
    act: Any = static()


class SameObject(Module):
    x: Any
    act: Any = static(identity=True)


class ByCode(Module):
    """A mistake: functions with equal code are the same static, whatever they read."""

    first_values: ClassVar[dict[Any, Any]] = {}
    x: Any
    act: Any = static(converter=lambda value: ByCode.first_values.setdefault(getattr(value, "__code__", value), value))


class ByEquality(Module):
    """A mistake: values that are equal for Python are the same static."""

    first_values: ClassVar[dict[Any, Any]] = {}
    x: Any
    act: Any = static(converter=lambda value: ByEquality.first_values.setdefault(value, value))


class Same(NamedTuple):
    """A value that equals only itself, whatever its `==`."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class ByIdentity:
    """The oracle: statics are compared as JAX does it, functions by identity."""

    x: Any
    act: Any = dataclasses.field(metadata={"static": True})


X = jnp.float32(1)
CLEAR: Any = jax.clear_caches
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "construction": lambda cls, value: cls(X, value),
    "replace": lambda cls, value: replace(cls(X, 1), act=value),
    "at": lambda cls, value: at(cls(X, 1), lambda node: node.act).set(value),
}


def program(value: Any) -> str:
    """The current program of a call of a static."""
    return str(jax.make_jaxpr(lambda x: call_static(value, x))(X))


class Run:
    """Nodes of one world, each traced through its class's cache and through one that compares by identity."""

    numbers = itertools.count()

    def __init__(self, cls: Any) -> None:
        if next(self.numbers) % 20 == 0:  # JAX's search through its cached entries of one shape is linear
            CLEAR()
        self.cls = cls
        self.world = World()
        self.nodes: list[tuple[Any, Any, Any]] = []
        self.first = 0  # index of the first checked node
        self.keywords: set[Any] = {2}  # the values that keywords of partials had
        # The caches of jit; `trace` stops before XLA.
        self.ours: Any = jax.jit(lambda node: call_static(node.act, node.x))
        self.oracle: Any = jax.jit(lambda node: call_static(node.act, node.x))

    def build(self, form: str, body: str, way: str) -> None:
        value = self.world.make(form, body)
        try:
            node = WAYS[way](self.cls, value)
        except StaticFieldError:  # The law allows rejection.
            return
        oracle = value.value if isinstance(value, treewright.Static) else value
        # By their `==`, JAX would merge objects that are equal at that moment, and by luck be right after a change.
        oracle = Same(value) if form in CHANGED_IN_PLACE else oracle
        self.nodes.append((value, node, ByIdentity(X, oracle)))

    def rebuild(self, index: int) -> None:
        """A node with an earlier value."""
        if self.nodes:
            value, _, oracle = self.nodes[index % len(self.nodes)]
            self.nodes.append((value, self.cls(X, value), ByIdentity(X, oracle.act)))

    def change(self, target: str, value: Any) -> None:
        if target == "keywords":  # Nothing can see that a dict was changed and changed back.
            if value in self.keywords:
                return
            self.keywords.add(value)
        self.world.change(target, value, [value for value, _, _ in self.nodes])
        if target in REBINDINGS:
            self.first = len(self.nodes)

    def check(self) -> None:
        """Check the law for all nodes."""
        for value, node, oracle in self.nodes[self.first :]:
            direct = program(value)
            assert node.act is value or program(node.act) == direct, "the field has a different value"
            assert getattr(node.act, "__name__", "") == getattr(value, "__name__", "")
            by_identity, ours = str(self.oracle.trace(oracle).jaxpr), str(self.ours.trace(node).jaxpr)
            assert ours == direct or by_identity != direct, f"stale: {ours} is not {direct}"
