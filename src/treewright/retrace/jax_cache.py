"""What of JAX's persistent compilation cache is private, with what is lost in a version of JAX without it."""

import dataclasses
from typing import Any

from treewright.retrace.jax_private import CACHE_EVENTS, frames_above

# A program is looked for, was read, was written; and the seconds that reading it saved. JAX calls the third a miss, and
# tells nothing of a program that was neither read nor written. Without them, nothing is said to have been read or kept.
ASKED = f"{CACHE_EVENTS}compile_requests_use_cache"
READ = f"{CACHE_EVENTS}cache_hits"
WRITTEN = f"{CACHE_EVENTS}cache_misses"
SAVED = f"{CACHE_EVENTS}compile_time_saved_sec"

_FRAME = "compile_or_get_cached"
_WRITER = "_cache_write"  # takes the callbacks where it refuses programs that have some
_LOCALS = ("cache_key", "computation", "host_callbacks")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CacheRequest:
    """A program that JAX looks for in its persistent cache."""

    key: str  # there
    module: Any  # the lowered program
    is_left_out: bool  # whether it calls Python and this JAX keeps no such program, as none did before 0.11

    def text(self) -> str:
        """The lowered text, without the places in the source that are no part of the key."""
        text: str = self.module.operation.get_asm(enable_debug_info=False)
        return text


def cache_request_on_stack() -> CacheRequest | None:
    """What JAX looks for in its persistent cache, read while it tells of that; None where it can't be read.

    Without it, the command `retraces` counts what the cache gave and kept, and says neither that a program calls Python
    nor why one is missed that was there before.
    """
    for frame in frames_above():
        if frame.f_code.co_name == _FRAME and frame.f_globals.get("__name__", "").startswith("jax."):
            names = frame.f_locals
            if all(name in names for name in _LOCALS):
                key, module, callbacks = (names[name] for name in _LOCALS)
                writer: Any = getattr(frame.f_globals.get(_WRITER), "__code__", None)
                asks = "host_callbacks" in getattr(writer, "co_varnames", ())
                return CacheRequest(key, module, asks and bool(callbacks))
    return None
