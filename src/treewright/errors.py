"""What Treewright raises. Each docstring tells a user the cause and the cure."""


class NodeDefinitionError(TypeError):
    """A class can't be made a node as it is written. Nothing has been registered.

    The message names the class, the field or option, and the line to write instead.
    """


class StaticFieldError(TypeError):
    """A static field was given a value that `jit` could not compare safely.

    `jit` compares statics and never copies them. A list that changes in place would give stale results, and an
    array has no single truth value. Three ways out: make the field a child, give it a hashable form (by hand or by
    `static(converter=treewright.freeze)`), or wrap the value in a class with `__hash__` and `__eq__`.
    """


class NodeInitError(TypeError):
    """An `__init__` returned before every field had a value, or assigned to names that are not fields."""


class UnfinishedNodeError(AttributeError):
    """A node was used before its `__init__` returned, or after it raised.

    Until then there is nothing to flatten: some of the fields may have no value.
    """


class TracedComparisonError(TypeError):
    """Two nodes were compared with `==` while a child of one of them is traced.

    `==` answers with a plain `bool`, and under `jit`, `grad` or `vmap` there is no value to take it from.
    """


class StaticSerializationError(ValueError):
    """A static value can't be written into, or read from, an exported program (`jax.export`)."""


class ShardingError(ValueError):
    """Leaves of a tree can't be split over a mesh as the names of their fields and the rules say.

    The message lists all of them by path. A rule is missing, the names do not count the axes of the array, two axes
    want one mesh axis, or a length does not divide by the number of devices.
    """


class ProcessMismatchError(RuntimeError):
    """The processes of one run hold different trees or programs. Every process raises it, before any has computed.

    Going on, a collective would wait without end, or each process would silently train with settings of its own.
    """
