"""Which allocator the servers get that are started for somebody."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdmq._allocator import allocator_environment, jemalloc
from tests.support import Server, ServerKind


def test_a_server_allocates_with_jemalloc(fresh_server: Callable[..., Server], server_kind: ServerKind) -> None:
    """Debian's are built with it; the embedded one gets it, unless something else is preloaded (sanitizers)."""
    assert jemalloc() is not None, "install libjemalloc2 (`make test` does)"
    assert "libjemalloc" in Path(f"/proc/{fresh_server().process.pid}/maps").read_text(), server_kind.name


def test_what_is_preloaded_already_stays() -> None:
    assert "LD_PRELOAD" not in allocator_environment({"LD_PRELOAD": "/lib/other.so"})


def test_without_jemalloc_that_of_glibc_is_set_up_but_for_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdmq._allocator.jemalloc", lambda: None)
    assert allocator_environment({}).keys() == {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"}
    assert "MALLOC_TOP_PAD_" not in allocator_environment(os.environ | {"MALLOC_TOP_PAD_": "0"})
