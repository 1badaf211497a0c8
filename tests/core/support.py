"""What the tests of the core share: exact-size memory, and an allocator that keeps the books and fails when told to.

Slices go to C in blocks of exactly their size from malloc: AddressSanitizer then sees every byte that is read outside.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from holdmq.core._binding import ffi, lib

LIBC = lib.hmq_libc_allocator


def heap(data: bytes) -> Any:
    """A copy in a malloc block of exactly this size, as `char *`; freed with the object."""
    block = LIBC.alloc(len(data))
    ffi.buffer(block, len(data))[:] = data
    return ffi.gc(ffi.cast("char *", block), LIBC.release)


def heap_bytes(data: bytes) -> Any:
    """The same as `uint8_t *`."""
    block = LIBC.alloc(len(data))
    ffi.buffer(block, len(data))[:] = data
    return ffi.gc(ffi.cast("uint8_t *", block), LIBC.release)


def slice_of(data: bytes) -> tuple[Any, Any]:
    """An `hmq_slice` of a block of exactly this size, and the block, to be kept as long as the slice."""
    block = heap_bytes(data)
    return ffi.new("hmq_slice *", (block, len(data)))[0], block


def text_of(part: Any) -> bytes:
    """The bytes of an `hmq_slice`."""
    return copy(part.data, part.len)


def copy(data: Any, size: int) -> bytes:
    """The bytes that C wrote or points to."""
    return bytes(ffi.buffer(data, size)) if size else b""


def written(size: int, write: Callable[[Any, int], int]) -> bytes:
    """What `write(out, capacity)` writes into a block of exactly `size` bytes; it must say that it wrote all of them.

    With every smaller capacity it must refuse, and so write nothing outside a smaller block.
    """
    for capacity in {0, 1, size // 2, size - 1} - {size}:
        assert write(heap(bytes(capacity)), capacity) == 0
    out = heap(bytes(size))
    assert write(out, size) == size
    return copy(out, size)


# What an allocator calls lives as long as the allocator, which a container holds until it has given everything back.
_callbacks: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


class Books:
    """An allocator that knows every block it gave out, and fails at chosen calls.

    Attributes:
        fails: asked before each call that takes memory (with the number of the call, from 1): True lets it fail.
        sizes: address -> size of what is out.
        calls: how many calls took memory or tried to.
    """

    def __init__(self, fails: Callable[[int], bool] = lambda _call: False) -> None:
        self.fails = fails
        self.sizes: dict[int, int] = {}
        self.calls = 0
        callbacks = {
            "alloc": ffi.callback("void *(size_t)", self._alloc),
            "resize": ffi.callback("void *(void *, size_t)", self._resize),
            "release": ffi.callback("void(void *)", self._release),
        }
        self.allocator = ffi.new("hmq_allocator *", callbacks)
        _callbacks[self.allocator] = callbacks

    def fail_at(self, call: int) -> None:
        """Lets this call fail and no other."""
        self.fails = lambda present: present == call

    @property
    def bytes_out(self) -> int:
        """Bytes that were taken and not given back."""
        return sum(self.sizes.values())

    def _fails_now(self) -> bool:
        self.calls += 1
        return self.fails(self.calls)

    def _alloc(self, size: int) -> Any:
        if self._fails_now():
            return ffi.NULL
        block = LIBC.alloc(size)
        self.sizes[address(block)] = size
        return block

    def _resize(self, old: Any, size: int) -> Any:
        if self._fails_now():
            return ffi.NULL
        if old != ffi.NULL:
            del self.sizes[address(old)]
        block = LIBC.resize(old, size)
        self.sizes[address(block)] = size
        return block

    def _release(self, block: Any) -> None:
        del self.sizes[address(block)]
        LIBC.release(block)


def address(block: Any) -> int:
    """The address as a number."""
    return int(ffi.cast("uintptr_t", block))
