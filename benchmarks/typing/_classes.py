"""Expressions that declare and construct: children, defaults, field specifiers, statics."""

from _expression import NO_HASH, STALE, UNCHECKED, Group, accept, declared, refuse, reveal

CONSTRUCTION = Group(
    "N",
    "construction and reading",
    """
node Layer:
    kernel: jax.Array
    bias: jax.Array
    scale: float = 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scale * (x @ self.kernel) + self.bias

node Net:
    first: Layer
    last: Layer

def a_layer() -> Layer:
    return Layer(kernel=kernel, bias=bias)

def a_net() -> Net:
    return Net(first=a_layer(), last=a_layer())
""",
    (
        accept("N01", "node Point:  #?\n    x: jax.Array  #?\n    y: jax.Array  #?"),
        accept("N02", "Layer(kernel=kernel, bias=bias)"),
        accept("N03", "Layer(kernel, bias)"),
        reveal("N04", "Layer", "Layer(kernel=kernel, bias=bias)"),
        refuse("N05", "N02", "Layer(kernel='no', bias=bias)", runs=UNCHECKED),
        refuse("N06", "N02", "Layer(kernel=kernel)"),
        refuse("N07", "N02", "Layer(kernel=kernel, bias=bias, nope=1)"),
        refuse("N08", "N03", "Layer(kernel, bias, 1.0, 2.0)"),
        reveal("N09", "jax.Array", "a_layer().kernel"),
        refuse("N10", "N09", "print(a_layer().kernle)"),
        reveal("N11", "jax.Array", "a_layer()(x)"),
        refuse("N12", "N11", "a_layer()(x, 3)"),
        reveal("N13", "jax.Array", "a_net().last.kernel"),
        accept("N14", "Net(first=a_layer(), last=a_layer())"),
        refuse("N15", "N14", "Net(first=a_layer(), last=kernel)", runs=UNCHECKED),
        accept(
            "N16",
            "match a_layer():\n    case Layer(_, second):  #?\n        assert_type(second, jax.Array)  #?\n"
            "    case _:\n        raise AssertionError",
        ),
    ),
)

DEFAULTS = Group(
    "D",
    "defaults, class and init variables, keyword-only",
    """
node Bag:
    items: dict[str, jax.Array] = field(default_factory=dict)

node Counted:
    kernel: jax.Array
    count: ClassVar[int] = 0

node Scaled:
    kernel: jax.Array
    factor: InitVar[float]

    def __post_init__(self, factor: float) -> None:
        print(factor)

node Settings keyword-only:
    rate: float = 0.1
    steps: int

node Marked:
    kernel: jax.Array
    _: KW_ONLY
    rate: float
""",
    (
        reveal("D01", "float", "a_layer().scale"),
        accept("D02", declared("rate: float = 0.1")),
        refuse("D03", "D02", declared("rate: float = 'no'"), runs=UNCHECKED),
        accept("D04", "node Order:  #?\n    kernel: jax.Array  #?\n    rate: float = 0.1  #?"),
        refuse("D05", "D04", "node Order:  #?\n    rate: float = 0.1  #?\n    kernel: jax.Array  #?"),
        reveal("D06", "jax.Array | None", declared("bias: jax.Array | None = None") + "\n\nHolder().bias"),
        accept("D07", declared("items: list[int] = field(default_factory=list[int])")),
        refuse("D08", "D07", declared("items: list[int] = field(default_factory=dict)"), runs=UNCHECKED),
        reveal("D09", "dict[str, jax.Array]", "Bag().items"),
        accept("D10", "Counted(kernel=kernel)"),
        refuse("D11", "D10", "Counted(kernel=kernel, count=3)"),
        reveal("D12", "int", "Counted.count"),
        accept("D13", "Scaled(kernel=kernel, factor=2.0)"),
        refuse("D14", "D13", "Scaled(kernel=kernel)"),
        accept("D15", "Settings(rate=0.1, steps=3)"),
        refuse("D16", "D15", "Settings(0.1, 3)"),
        refuse("D17", "D15", "Settings(rate=0.1)"),
        accept("D18", "Marked(kernel=kernel, rate=0.1)"),
        refuse("D19", "D18", "Marked(kernel, 0.1)"),
    ),
)

FIELDS = Group(
    "F",
    "field specifiers",
    """
node Keyed:
    kernel: jax.Array
    rate: float = field(kw_only=True)

node Built:
    kernel: jax.Array
    count: float = field(default=0.0, init=False)

node Required:
    kernel: jax.Array = field(metadata={"axis": 0})

node Standard:
    kernel: jax.Array = dataclasses.field(repr=False)
    rates: tuple[float, ...] = dataclasses.field(default=(0.1,))
""",
    (
        accept("F01", declared("rate: float = field(default=0.1)")),
        refuse("F02", "F01", declared("rate: float = field(default='no')"), runs=UNCHECKED),
        accept("F03", declared("items: tuple[int, ...] = field(default_factory=tuple)")),
        refuse(
            "F04",
            "F03",
            declared("items: tuple[int, ...] = field(default=(), default_factory=tuple)"),
            runs="one of the two is never used",
        ),
        refuse("F05", "F01", declared("rate: float = field(default=0.1, nonsense=1)")),
        accept("F06", "Keyed(kernel=kernel, rate=0.1)"),
        refuse("F07", "F06", "Keyed(kernel, 0.1)"),
        accept("F08", "Built(kernel=kernel)"),
        refuse("F09", "F08", "Built(kernel=kernel, count=1.0)"),
        accept("F10", "Required(kernel=kernel)"),
        refuse("F11", "F10", "Required()"),
        accept("F12", "Standard(kernel=kernel)"),
        refuse("F13", "F12", "Standard()"),
    ),
)

STATICS = Group(
    "S",
    "static fields",
    """
class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3

class Activation(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...

def twice(x: jax.Array) -> jax.Array:
    return 2 * x

node Named:
    kernel: jax.Array
    name: str = static()
    width: int = static(default=64)

def a_named() -> Named:
    return Named(kernel=kernel, name="a")
""",
    (
        accept("S01", declared("name: str = static()")),
        accept("S02", "Named(kernel=kernel, name='a')"),
        refuse("S03", "S02", "Named(kernel=kernel)"),
        refuse("S04", "S02", "Named(kernel=kernel, name=3)", runs=UNCHECKED),
        reveal("S05", "str", "a_named().name"),
        accept("S06", declared("rate: float = static(default=0.1)")),
        refuse("S07", "S06", declared("rate: float = static(default='no')"), runs=UNCHECKED),
        accept("S08", declared("sizes: tuple[int, ...] = static(default_factory=tuple)")),
        refuse("S09", "S08", declared("sizes: tuple[int, ...] = static(default_factory=frozenset)"), runs=UNCHECKED),
        refuse("S10", "S06", declared("rate: float = static(default=0.1, nonsense=1)")),
        reveal(
            "S11",
            "jax.Array",
            declared("function: Callable[[jax.Array], jax.Array] = static(default=twice)") + "\n\nHolder().function(x)",
        ),
        accept("S12", declared("sizes: tuple[int, ...] = static()")),
        accept("S13", declared("color: Color = static()")),
        accept("S14", declared("kind: type[float] = static()")),
        accept("S15", declared("name: str | None = static(default=None)")),
        accept("S16", declared("dtype: np.dtype[np.float32] = static()")),
        accept("S17", declared("config: Config = static()")),
        accept("S18", declared("function: Activation = static(default=twice)")),
        accept("S19", declared("axes: frozenset[str] = static()")),
        refuse("S20", "S12", declared("sizes: list[int] = static()"), runs=STALE, design=True),
        refuse("S21", "S12", declared("sizes: dict[str, int] = static()"), runs=STALE, design=True),
        refuse("S22", "S19", declared("axes: set[str] = static()"), runs=STALE, design=True),
        refuse("S23", "S16", declared("scale: npt.NDArray[np.float32] = static()"), runs=NO_HASH, design=True),
        refuse("S24", "S16", declared("scale: jax.Array = static()"), runs=NO_HASH, design=True),
        refuse("S25", "S08", declared("sizes: list[int] = static(default_factory=list[int])"), runs=STALE, design=True),
    ),
)

GROUPS = (CONSTRUCTION, DEFAULTS, FIELDS, STATICS)
