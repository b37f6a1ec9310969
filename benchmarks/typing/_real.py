"""Expressions as they stand in real programs: generics, stacks of layers, loops, jitted methods, protocols, states."""

from _expression import UNCHECKED, Group, accept, declared, refuse, reveal

PARAMS = "params=a_model(), momentum=a_model(), step=0"

GENERICS = Group(
    "G",
    "generic nodes and stacks of layers",
    """
node Chain(Generic[T]):
    layers: tuple[T, ...]
    scale: float = 1.0

    def first(self) -> T:
        return self.layers[0]

node Couple(Generic[T, K]):
    left: T
    right: K
    note: str = ""

node Mlp:
    layers: list[Layer]

node Deep:
    inner: Chain[Layer]

node LayerChain(Chain[Layer]):
    depth: int = 1

node Tabled:
    table: dict[str, Layer]

def a_chain() -> Chain[Layer]:
    return Chain(layers=(a_layer(), a_layer()))

def a_mlp() -> Mlp:
    return Mlp(layers=[a_layer(), a_layer()])

def first_of(chain: Chain[T]) -> T:
    return chain.layers[0]

def make_layer(row: jax.Array) -> Layer:
    return Layer(kernel=kernel, bias=row)
""",
    (
        reveal("G01", "Chain[Layer]", "Chain(layers=(a_layer(), a_layer()))"),
        reveal("G02", "Layer", "a_chain().first()"),
        refuse("G03", "G02", "print(a_chain().first().kernle)"),
        reveal("G04", "Couple[Layer, int]", "Couple(left=a_layer(), right=3)"),
        reveal("G05", "jax.Array", "Couple(left=a_layer(), right=3).left.kernel"),
        accept("G06", "couple: Couple[Layer, float] = Couple(left=a_layer(), right=2.0)"),
        refuse("G07", "G06", "couple: Couple[Layer, float] = Couple(left=a_layer(), right='no')", runs=UNCHECKED),
        reveal("G08", "Layer", "a_mlp().layers[0]"),
        reveal("G09", "jax.Array", "out = x\nfor layer in a_mlp().layers:\n    out = layer(out)\nout"),
        refuse("G10", "G08", "Mlp(layers=a_layer())", runs=UNCHECKED),
        reveal("G11", "Chain[Layer]", "Deep(inner=a_chain()).inner"),
        refuse("G12", "G11", "Deep(inner=Chain(layers=(3,)))", runs=UNCHECKED),
        accept("G13", "LayerChain(layers=(a_layer(),), depth=2)"),
        reveal("G14", "Layer", "LayerChain(layers=(a_layer(),)).first()"),
        reveal("G15", "list[jax.Array]", "[layer.kernel for layer in a_mlp().layers]"),
        reveal("G16", "tuple[Layer, ...]", "a_chain().layers"),
        reveal("G17", "Layer", "first_of(a_chain())"),
        reveal("G18", "dict[str, Layer]", "Tabled(table={'a': a_layer()}).table"),
        refuse("G19", "G18", "Tabled(table=[a_layer()])", runs=UNCHECKED),
        reveal("G20", "Layer", "vmap(make_layer)(x)"),
        reveal("G21", "list[Layer]", "[replaced(layer, scale=2.0) for layer in a_mlp().layers]"),
    ),
)

LOOPS = Group(
    "L",
    "loops and scan bodies",
    """
node Carry:
    layer: Layer
    total: jax.Array

def a_carry() -> Carry:
    return Carry(layer=a_layer(), total=jnp.ones(()))

def advance(carry: Carry, item: jax.Array) -> tuple[Carry, jax.Array]:
    return Carry(layer=carry.layer, total=carry.total + 1.0), carry.layer(item)

def unfinished(carry: Carry) -> jax.Array:
    return carry.total < 0.0

def keep(carry: Carry) -> Carry:
    return carry
""",
    (
        reveal("L01", "tuple[Carry, jax.Array]", "scan(advance, a_carry(), xs)"),
        reveal("L02", "jax.Array", "scan(advance, a_carry(), xs)[0].total"),
        refuse("L03", "L01", "scan(advance, x, xs)"),
        accept(
            "L04",
            "def body(carry: Carry, item: jax.Array) -> tuple[Carry, None]:\n    return carry, None\n\n"
            "final, _ = scan(body, a_carry(), xs)  #?\nassert_type(final, Carry)  #?",
        ),
        reveal("L05", "Carry", "while_loop(unfinished, keep, a_carry())"),
        refuse("L06", "L05", "while_loop(unfinished, keep, x)"),
        reveal("L07", "tuple[Carry, jax.Array]", "jit(advance)(a_carry(), x)"),
        refuse("L08", "L07", "jit(advance)(x, a_carry())"),
        reveal("L09", "Layer", "jit(advance)(a_carry(), x)[0].layer"),
        reveal("L10", "jax.Array", "vmap(lambda item: a_layer()(item))(xs)"),
        reveal("L11", "Carry", "carry = a_carry()\nfor item in xs:\n    carry, _ = advance(carry, item)\ncarry"),
        reveal("L12", "Layer", "jax.lax.stop_gradient(a_layer())"),
        refuse("L13", "L01", "print(scan(advance, a_carry(), xs)[0].totl)"),
    ),
)

MODELS = Group(
    "M",
    "models, their methods, training steps",
    """
node Model:
    layers: tuple[Layer, ...]
    rate: float = 0.1

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x

    @jit
    def predict(self, x: jax.Array, scale: float = 1.0) -> jax.Array:
        return self(x) * scale

    @classmethod
    def create(cls, depth: int) -> Self:
        return cls(layers=tuple(a_layer() for _ in range(depth)))

    @property
    def depth(self) -> int:
        return len(self.layers)

node Picker:
    layers: tuple[Layer, ...]

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Layer, ...]: ...

    def __getitem__(self, index: int | slice) -> Layer | tuple[Layer, ...]:
        return self.layers[index]

node Cached:
    kernel: jax.Array

    @functools.cached_property
    def norm(self) -> jax.Array:
        return jnp.sum(self.kernel**2)

def a_model() -> Model:
    return Model(layers=(a_layer(), a_layer()))

def a_picker() -> Picker:
    return Picker(layers=(a_layer(), a_layer()))

def model_loss(model: Model, x: jax.Array) -> jax.Array:
    return jnp.sum(model(x))
""",
    (
        reveal("M01", "jax.Array", "a_model().predict(x)"),
        reveal("M02", "jax.Array", "a_model().predict(x, scale=2.0)"),
        refuse("M03", "M01", "a_model().predict()"),
        refuse("M04", "M02", "a_model().predict(x, scal=2.0)"),
        refuse("M05", "M01", "a_model().predict('no')"),
        reveal("M06", "Model", "Model.create(2)"),
        refuse("M07", "M06", "Model.create('no')"),
        reveal("M08", "int", "a_model().depth"),
        refuse("M09", "M08", "a_model().depth = 3"),
        reveal("M10", "jax.Array", "vmap(a_model())(xs)"),
        reveal("M11", "jax.Array", "jit(a_model().__call__)(x)"),
        accept(
            "M12",
            "def step(model: Model, batch: jax.Array) -> tuple[Model, jax.Array]:\n"
            "    value, slope = value_and_grad(model_loss)(model, batch)  #?\n"
            "    return tree_map(lambda p, g: p - 0.1 * g, model, slope), value  #?\n\n"
            "assert_type(step(a_model(), x), tuple[Model, jax.Array])",
            design=True,
        ),
        reveal("M13", "Model", "grad(lambda model: model_loss(model, x))(a_model())", design=True),
        reveal("M14", "jax.Array", "value_and_grad(lambda model: model_loss(model, x))(a_model())[0]", design=True),
        reveal("M15", "Model", "tree_map(lambda leaf: 2 * leaf, a_model())", design=True),
        accept(
            "M16",
            "@functools.partial(jit, static_argnames='train')  #?\n"
            "def apply(model: Model, x: jax.Array, train: bool) -> jax.Array:\n    return model(x)\n\n"
            "assert_type(apply(a_model(), x, train=True), jax.Array)  #?",
        ),
        accept(
            "M17",
            "@jit(static_argnames='train')  #?\n"
            "def apply(model: Model, x: jax.Array, train: bool) -> jax.Array:\n    return model(x)\n\n"
            "assert_type(apply(a_model(), x, train=True), jax.Array)  #?",
        ),
        refuse(
            "M18",
            "M17",
            "@jit(static_argnames='train')\n"
            "def apply(model: Model, x: jax.Array, train: bool) -> jax.Array:\n    return model(x)\n\n"
            "apply(a_model(), x, trian=True)",
        ),
        reveal("M19", "jax.Array", "Cached(kernel=kernel).norm"),
        reveal("M20", "Layer", "a_picker()[0]"),
        reveal("M21", "tuple[Layer, ...]", "a_picker()[1:]"),
        refuse("M22", "M20", "a_picker()['no']"),
        reveal("M23", "Model", "jit(grad(model_loss))(a_model(), x)", design=True),
        reveal("M24", "tuple[jax.Array, Model]", "jit(value_and_grad(model_loss))(a_model(), x)", design=True),
        refuse("M25", "M23", "jit(grad(model_loss))(a_layer(), x, 3)", design=True),
    ),
)

PROTOCOLS = Group(
    "P",
    "protocols, partials, unions, shapes",
    """
class Applies(Protocol):
    def __call__(self, x: jax.Array, /) -> jax.Array: ...

class HasDepth(Protocol):
    @property
    def depth(self) -> int: ...

node Wrapper:
    inner: Applies

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.inner(x)

node Perhaps:
    inner: Layer | None = None

node Shaped:
    kernel: Float[jax.Array, "inputs outputs"]

def total(layer: Layer, x: jax.Array) -> jax.Array:
    return jnp.sum(layer(x))
""",
    (
        accept("P01", "model: Applies = a_layer()"),
        refuse("P02", "P01", "model: Applies = a_net()", runs=UNCHECKED),
        accept("P03", "models: list[Applies] = [a_layer(), a_model()]"),
        accept("P04", "deep: HasDepth = a_model()"),
        refuse("P05", "P04", "deep: HasDepth = a_layer()", runs=UNCHECKED),
        reveal("P06", "jax.Array", "Wrapper(inner=a_layer())(x)"),
        refuse("P07", "P06", "Wrapper(inner=3)", runs=UNCHECKED),
        reveal("P08", "jax.Array", "functools.partial(total, a_layer())(x)"),
        refuse("P09", "P08", "functools.partial(total, a_layer())('no')"),
        accept(
            "P10",
            declared(
                "function: Callable[[jax.Array], jax.Array] = static(default=functools.partial(jnp.clip, min=0.0))"
            ),
        ),
        accept("P11", declared("mode: Literal['a', 'b'] = static(default='a')")),
        refuse("P12", "P11", declared("mode: Literal['a', 'b'] = static(default='c')"), runs=UNCHECKED),
        accept(
            "P13",
            "def size(node: Layer | Net) -> jax.Array:\n    if isinstance(node, Layer):\n"
            "        return node.kernel  #?\n    return node.last.kernel  #?\n\nsize(a_net())",
        ),
        accept(
            "P14",
            "def size(node: Layer | Net) -> jax.Array:\n    match node:\n        case Layer(kernel=found):  #?\n"
            "            return found  #?\n        case Net(last=last):  #?\n            return last.kernel  #?\n\n"
            "size(a_net())",
        ),
        accept("P15", "make: Callable[[jax.Array, jax.Array], Layer] = Layer"),
        refuse("P16", "P15", "make: Callable[[str], Layer] = Layer", runs=UNCHECKED),
        reveal("P17", "type[Layer]", "type(a_layer())"),
        reveal("P18", "Layer", declared("inner: Layer = field(default_factory=a_layer)") + "\n\nHolder().inner"),
        refuse("P19", "P18", declared("inner: Layer = field(default_factory=a_net)"), runs=UNCHECKED),
        reveal("P20", "Layer | None", "Perhaps(inner=a_layer()).inner"),
        refuse("P21", "P20", "print(Perhaps(inner=a_layer()).inner.kernel)", runs="there is a layer this time"),
        reveal("P22", "list[str]", "[one.name for one in dataclasses.fields(Layer)]"),
        reveal("P23", "jax.Array", "Shaped(kernel=kernel).kernel.T"),
        refuse("P24", "P23", "Shaped(kernel='no')", runs=UNCHECKED),
        reveal("P25", "Layer", "copy.deepcopy(a_layer())"),
    ),
)

STATES = Group(
    "T",
    "training states of one's own",
    """
node State:
    params: Model
    momentum: Model
    step: int

    def advance(self) -> Self:
        return replaced(self, step=self.step)

node Averaging(State):
    average: Model

node Kept(State, Generic[T]):
    kept: T

def a_state() -> State:
    return State(params=a_model(), momentum=a_model(), step=0)

def an_average() -> Averaging:
    return Averaging(params=a_model(), momentum=a_model(), step=0, average=a_model())

def update(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    return State(params=state.params, momentum=state.momentum, step=state.step), state.params(x)
""",
    (
        reveal("T01", "State", "a_state().advance()"),
        reveal("T02", "Model", "a_state().params"),
        refuse("T03", "T01", f"State({PARAMS}, kye=3)"),
        accept("T04", f"Averaging({PARAMS}, average=a_model())"),
        reveal("T05", "Averaging", "an_average().advance()"),
        refuse("T06", "T04", f"Averaging({PARAMS})"),
        reveal("T07", "tuple[State, jax.Array]", "jit(update)(a_state(), x)"),
        refuse("T08", "T07", "jit(update)(a_model(), x)"),
        reveal("T09", "State", "scan(update, a_state(), xs)[0]"),
        refuse("T10", "T02", "a_state().step = 3"),
        reveal("T11", "jax.Array", "update(a_state(), x)[1]"),
        reveal("T12", "State", "replaced(a_state(), step=3)"),
        refuse("T13", "T12", "replaced(a_state(), stpe=3)"),
        reveal("T14", "Kept[int]", f"Kept({PARAMS}, kept=3)"),
        reveal("T15", "int", f"Kept({PARAMS}, kept=3).kept"),
        refuse("T16", "T17", f"Kept[int]({PARAMS}, kept='no')", runs=UNCHECKED),
        accept("T17", f"Kept[int]({PARAMS}, kept=3)"),
        reveal("T18", "Layer", "layer = a_layer()\nlayer = replaced(layer, scale=2.0)\nlayer"),
        reveal("T19", "Averaging", "replaced(an_average(), step=3)"),
        refuse("T20", "T19", "replaced(an_average(), step='no')", runs=UNCHECKED),
        accept("T21", "states: list[State] = [a_state(), an_average()]"),
        refuse("T22", "T21", "states: list[Averaging] = [an_average(), a_state()]", runs=UNCHECKED),
    ),
)

GROUPS = (GENERICS, LOOPS, MODELS, PROTOCOLS, STATES)
