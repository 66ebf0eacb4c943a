"""The backends that the machines drive: one line each, with what cannot be had of it.

`PLACES` is the table. A machine gets a `Place` of its own for every example, uses each through two handles, and is
told which verbs a kind leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.checkpoint.strangers import DictStorage

from knotline.backends import Backend, MemoryBackend, SqliteBackend
from knotline.backends.encrypted import EncryptedBackend
from knotline.checkpoint import AdapterBackend
from knotline.testing import FakeClock, StrictBackend

__all__ = ["PLACES", "Kind", "Place", "place"]

KEY = bytes(range(32))
_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Place:
    """What outlives a backend: a folder, a memory, a stranger's dict; and the clock of all of them."""

    clock: FakeClock
    folder: Path
    memory: MemoryBackend = field(init=False)
    kept: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def __post_init__(self) -> None:
        self.memory = MemoryBackend(clock=self.clock)


@contextmanager
def place(clock: FakeClock | None = None) -> Iterator[Place]:
    with TemporaryDirectory(prefix="laws-", dir=_ROOM) as folder:
        yield Place(clock or FakeClock(), Path(folder))


def _memory(at: Place) -> Backend:
    return at.memory


def _sqlite(at: Place) -> Backend:
    return SqliteBackend(at.folder / "store.db", clock=at.clock)


def _files(at: Place) -> Backend:
    from knotline.backends.files import FilesBackend

    return FilesBackend(at.folder / "files", clock=at.clock)


def _adapter(at: Place) -> Backend:
    return AdapterBackend(DictStorage(at.kept))


def _encrypted(inner: Callable[[Place], Backend]) -> Callable[[Place], Backend]:
    # Strict from outside only: what is sealed twice is never the same bytes, and under it that is allowed.
    return lambda at: StrictBackend(EncryptedBackend(inner(at), KEY))


def _strict(inner: Callable[[Place], Backend]) -> Callable[[Place], Backend]:
    return lambda at: StrictBackend(inner(at))


@dataclass(frozen=True)
class Kind:
    """`leases`: there are any. `many`: it may be open twice at once. `closes`: it is there again when it was closed."""

    open: Callable[[Place], Backend]
    leases: bool = True
    many: bool = True
    closes: bool = True


PLACES: dict[str, Kind] = {
    "memory": Kind(_strict(_memory), closes=False),
    "sqlite": Kind(_sqlite),
    "files": Kind(_files),
    "encrypted memory": Kind(_encrypted(_memory), closes=False),
    "encrypted sqlite": Kind(_encrypted(_sqlite)),
    "encrypted files": Kind(_encrypted(_files)),
    "adapter": Kind(_strict(_adapter), leases=False, many=False),
    "encrypted adapter": Kind(_encrypted(_adapter), leases=False, many=False),
}
