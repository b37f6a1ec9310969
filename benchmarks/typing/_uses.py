"""Expressions that use nodes: frozen fields, copies, transforms, inheritance, converters, own constructors."""

from _expression import UNCHECKED, Group, accept, declared, refuse, reveal

FROZEN = Group(
    "A",
    "frozen fields",
    """
node Wide(Layer):
    extra: float = 0.0

node Box(Generic[T]):
    value: T
    count: int = 1
""",
    (
        refuse("A01", "N09", "a_layer().kernel = kernel"),
        refuse("A02", "D01", "layer = a_layer()\nlayer.scale += 1.0"),
        refuse("A03", "N09", "del a_layer().kernel"),
        refuse("A04", "S05", "a_named().name = 'b'"),
        refuse("A05", "N09", "wide = Wide(kernel=kernel, bias=bias)\nwide.kernel = kernel"),
        refuse("A06", "N09", "box = Box(value=3)\nbox.value = 4"),
        refuse(
            "A07",
            "N09",
            "node Growing:\n    scale: float\n\n    def grow(self) -> None:\n        self.scale = 2.0  #?\n\n"
            "Growing(scale=1.0).grow()",
        ),
        refuse("A08", "N09", "a_layer().nope = kernel"),
    ),
)

COPIES = Group(
    "R",
    "changed copies",
    """
def a_wide() -> Wide:
    return Wide(kernel=kernel, bias=bias)

def a_box() -> Box[str]:
    return Box(value="a")
""",
    (
        reveal("R01", "Layer", "replaced(a_layer(), scale=2.0)"),
        refuse("R02", "R01", "replaced(a_layer(), scale='no')", runs=UNCHECKED),
        refuse("R03", "R01", "replaced(a_layer(), nope=2.0)"),
        reveal("R04", "Wide", "replaced(a_wide(), scale=2.0)"),
        reveal("R05", "Box[str]", "replaced(a_box(), count=2)"),
        accept(
            "R06",
            "node Growing:\n    scale: float\n\n    def grown(self) -> Self:\n"
            "        return replaced(self, scale=2.0)  #?\n\nGrowing(scale=1.0).grown()  #?",
        ),
        reveal("R07", "Layer", "a_layer().replace(scale=2.0)"),
        refuse("R08", "R07", "a_layer().replace(scale='no')", runs=UNCHECKED),
        refuse("R09", "R07", "a_layer().replace(nope=2.0)"),
        reveal("R10", "Wide", "a_wide().replace(scale=2.0)"),
        accept(
            "R11",
            "node Growing:\n    scale: float\n\n    def grown(self) -> Self:\n"
            "        return self.replace(scale=2.0)  #?\n\nGrowing(scale=1.0).grown()  #?",
        ),
    ),
)

TRANSFORMS = Group(
    "J",
    "transforms",
    """
def loss(layer: Layer, x: jax.Array) -> jax.Array:
    return jnp.sum(layer(x))

def loss_and_size(layer: Layer, x: jax.Array) -> tuple[jax.Array, int]:
    return jnp.sum(layer(x)), x.size

def power(layer: Layer, n: int) -> jax.Array:
    return jnp.sum(layer.kernel) ** n

def step(layer: Layer, x: jax.Array) -> tuple[Layer, jax.Array]:
    return layer, jnp.sum(layer(x))

def double(leaf: Any) -> Any:
    return 2 * leaf

node Stepper:
    kernel: jax.Array

    @jit
    def step(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel

node Walker:
    kernel: jax.Array

    @jit_method
    def step(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel
""",
    (
        reveal("J01", "jax.Array", "jit(loss)(a_layer(), x)"),
        refuse("J02", "J01", "jit(loss)(a_layer())"),
        refuse("J03", "J01", "jit(loss)('no', x)"),
        reveal("J04", "jax.Array", "jit(loss)(a_layer(), x=x)"),
        accept("J05", "jit(loss).lower(a_layer(), x)"),
        refuse("J06", "J05", "jit(loss).lower(a_layer())"),
        reveal("J07", "jax.Array", "jit(power, static_argnames='n')(a_layer(), n=2)"),
        reveal("J08", "jax.Array", "Stepper(kernel=kernel).step(x)"),
        refuse("J09", "J08", "Stepper(kernel=kernel).step(x, 3)"),
        accept(
            "J10",
            "node LongWalker(Walker):\n    @jit_method  #?\n    def step(self, x: jax.Array) -> jax.Array:  #?\n"
            "        return 2 * (x @ self.kernel)\n\nLongWalker(kernel=kernel).step(x)",
        ),
        reveal("J11", "Layer", "grad(loss)(a_layer(), x)", design=True),
        refuse("J12", "J11", "grad(loss)(a_layer())", design=True),
        reveal("J13", "jax.Array", "grad(loss, argnums=1)(a_layer(), x)", design=True),
        reveal("J14", "tuple[jax.Array, Layer]", "value_and_grad(loss)(a_layer(), x)", design=True),
        reveal(
            "J15",
            "tuple[tuple[jax.Array, int], Layer]",
            "value_and_grad(loss_and_size, has_aux=True)(a_layer(), x)",
            design=True,
        ),
        reveal("J16", "Layer", "jit(grad(loss))(a_layer(), x)", design=True),
        reveal("J17", "Layer", "tree_map(double, a_layer())", design=True),
        reveal("J18", "jax.Array", "vmap(loss, in_axes=(None, 0))(a_layer(), xs)"),
        reveal("J19", "tuple[Layer, jax.Array]", "scan(step, a_layer(), xs)"),
    ),
)

INHERITANCE = Group(
    "I",
    "inheritance, generics, abstract classes",
    """
node Loose:
    value: float | str
    count: int = 1

node IntBox(Box[int]):
    name: str = "a"

node Shape(abc.ABC):
    side: float

    @abc.abstractmethod
    def area(self) -> float: ...

node Square(Shape):
    def area(self) -> float:
        return self.side * self.side

class HasKernel(Protocol):
    @property
    def kernel(self) -> jax.Array: ...

node Maker:
    kernel: jax.Array

    @classmethod
    def ones(cls) -> Self:
        return cls(kernel=jnp.ones((3, 3)))
""",
    (
        accept("I01", "Wide(kernel=kernel, bias=bias, extra=2.0)"),
        accept("I02", "Wide(kernel, bias, 1.0, 2.0)"),
        refuse("I03", "I01", "Wide(kernel=kernel, extra=2.0)"),
        accept("I04", "layer: Layer = Wide(kernel=kernel, bias=bias)"),
        refuse("I05", "I04", "wide: Wide = Layer(kernel=kernel, bias=bias)", runs=UNCHECKED),
        reveal("I06", "jax.Array", "Wide(kernel=kernel, bias=bias)(x)"),
        accept("I07", "node Strict(Loose):\n    value: str  #?\n\nStrict(value='a')"),
        refuse("I08", "I07", "node Strict(Loose):\n    value: list[int]  #?\n\nStrict(value=[3])", runs=UNCHECKED),
        reveal("I09", "Box[int]", "Box(value=3)"),
        accept("I10", "Box[int](value=3)"),
        refuse("I11", "I10", "Box[int](value='no')", runs=UNCHECKED),
        reveal("I12", "int", "Box(value=3).value"),
        reveal("I13", "int", "IntBox(value=3).value"),
        refuse("I14", "I13", "IntBox(value='no')", runs=UNCHECKED),
        reveal("I15", "float", "Square(side=2.0).area()"),
        refuse("I16", "I15", "Shape(side=2.0)"),
        accept("I17", "item: HasKernel = a_layer()"),
        reveal("I18", "Maker", "Maker.ones()"),
    ),
)

CONVERTED = declared("kernel: jax.Array = converted(to_array)")
OWN_INIT = (
    "node Holder own-init:\n    width: {}\n\n    def __init__(self, size: int) -> None:\n        {}  #?\n\nHolder(3)"
)

CONVERTERS = Group(
    "C",
    "converters, own constructors",
    """
def to_array(value: jax.Array | float) -> jax.Array:
    return jnp.asarray(value)

node Own own-init:
    kernel: jax.Array

    def __init__(self, size: int) -> None:
        self.kernel = jnp.ones((size, size))

node Sealed own-init:
    kernel: Final[jax.Array]

    def __init__(self, size: int) -> None:
        self.kernel = jnp.ones((size, size))
""",
    (
        accept("C01", CONVERTED + "\n\nHolder(kernel=2.0)"),
        reveal("C02", "jax.Array", CONVERTED + "\n\nHolder(kernel=kernel).kernel"),
        refuse("C03", "C01", CONVERTED + "\n\nHolder(kernel=object())"),
        accept("C04", OWN_INIT.format("int", "self.width = size")),
        refuse("C05", "C04", OWN_INIT.format("int", "self.width = str(size)"), runs=UNCHECKED),
        reveal("C06", "Own", "Own(3)"),
        refuse("C07", "C06", "Own(kernel=kernel)"),
        reveal("C08", "jax.Array", "Own(3).kernel"),
        refuse("C09", "C08", "Own(3).kernel = kernel"),
        accept("C10", OWN_INIT.format("Final[int]", "self.width = size")),
        refuse("C11", "C08", "Sealed(3).kernel = kernel"),
    ),
)

GROUPS = (FROZEN, COPIES, TRANSFORMS, INHERITANCE, CONVERTERS)
