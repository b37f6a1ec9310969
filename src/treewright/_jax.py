"""What differs between the releases of JAX that this package runs on, from 0.9.0 to the newest."""

# The frames of JAX in which a call of a jitted function can be read while it is traced, and while it is compiled. In
# 0.9.0 only `_trace_for_jit` shows a trace; since then it stands below `_infer_params`, with the same call.
TRACING = frozenset({"_infer_params", "_trace_for_jit"})
FRAMES = TRACING | {"_run_python_pjit"}
