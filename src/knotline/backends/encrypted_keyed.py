"""An open encrypted store's keys: how they are had, how they follow what other processes do, and how they change.

Apart from the backend because none of this moves the store's bytes: a slot or a root can change beside any traffic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from knotline.backends import encrypted_ring as ring
from knotline.backends.contract import Backend
from knotline.backends.encrypted_cipher import Cipher, epoch_of, require
from knotline.backends.encrypted_ring import Ring, SlotInfo
from knotline.backends.keys import KeySource, as_sources
from knotline.errors import Tampered, Unavailable

__all__ = ["Keyed"]


class Keyed:
    """The part of the encrypted backend that knows its slots."""

    def __init__(
        self,
        inner: Backend,
        key_source: KeySource | Sequence[KeySource] | bytes | None = None,
        *,
        unfinished: bool = False,
    ) -> None:
        require()
        self.inner = inner
        self._lock = threading.Lock()
        self._sources = as_sources(key_source)
        self._ring = ring.create(inner, self._sources, self.name, complete=not unfinished)
        if not unfinished and not self._ring.complete:
            raise Unavailable(self.name, why="it is a copy that was not finished; copy again, into an empty place")
        self._cipher = Cipher(self._ring.store, list(self._ring.roots))

    @property
    def name(self) -> str:
        return f"encrypted:{self.inner.name}"

    def __repr__(self) -> str:
        return f"<EncryptedBackend {self.name}>"

    # -- following -----------------------------------------------------------------------------------------

    def _for(self, stored: bytes) -> Cipher:
        """The cipher that knows the epoch of this piece: another process may have rotated the root."""
        if epoch_of(stored) > self._cipher.epoch:
            with self._lock:
                there = ring.read(self.inner)
                if there is not None and there.raw != self._ring.raw:
                    self._adopt(self._reopened(there))
        return self._cipher

    def _reopened(self, there: Ring) -> Ring:
        if there.store != self._ring.store:
            raise Tampered("the key slots", why="they are another store's")
        if there.epoch == self._ring.epoch:
            return there.checked(self._ring.roots[-1])
        return ring.opened(there, self._sources, self.name)

    def _adopt(self, fresh: Ring) -> None:
        if len(fresh.roots) != len(self._ring.roots):
            self._cipher = Cipher(fresh.store, list(fresh.roots))
        self._ring = fresh

    def _change(self, decide: Callable[[Ring], Ring], *, objects: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        with self._lock:
            self._adopt(ring.change(self.inner, self._ring, decide, reopen=self._reopened, objects=objects))

    # -- slots ---------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often the root was rotated; what this handle writes is sealed under this one."""
        return self._cipher.epoch

    def list_slots(self) -> list[SlotInfo]:
        there = ring.read(self.inner)
        return [] if there is None else there.names()

    def check_slots(self) -> None:
        """Raises when the slots are not what somebody with a key made of them."""
        there = ring.read(self.inner)
        if there is None:
            raise Tampered("the key slots", why="they are gone")
        with self._lock:
            self._adopt(self._reopened(there))

    def add_slot(self, name: str, source: KeySource | bytes) -> None:
        """One more key or passphrase that opens the store. Nothing that is stored is touched."""
        secret = ring.secrets(as_sources(source), self.name)[0]
        self._change(lambda now: now.with_slot(name, secret))
        self._sources += as_sources(source)

    def replace_slot(self, name: str, source: KeySource | bytes) -> None:
        """Another key or passphrase in the place of this one. Nothing that is stored is touched."""
        secret = ring.secrets(as_sources(source), self.name)[0]
        self._change(lambda now: now.with_other_secret(name, secret))
        self._sources += as_sources(source)

    def remove_slot(self, name: str) -> None:
        """Never the last. Whoever opened the store with it before may know the root: `rotate` is for that."""
        self._change(lambda now: now.without_slot(name))

    def rotate(self, *sources: KeySource | bytes, forget: bool = False) -> None:
        """A new root, for what is written from now on. What is there stays as it is and stays readable.

        Every slot needs its secret to follow: give the sources of all of them, or `forget` the others. Without
        sources, those that this handle was given so far are asked.
        """
        asked = tuple(each for source in sources for each in as_sources(source)) or self._sources
        known = ring.secrets(asked, self.name)
        self._change(lambda now: now.rotated(known, forget=forget))
        self._sources += asked if sources else ()
