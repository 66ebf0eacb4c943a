"""Every format that is read from a disk, each as a function that takes hostile bytes: the registry of what is fuzzed.

A target either returns or raises one of the errors it may raise; whatever else comes out of it is a finding. Where a
digest stands in front of what is read, the target makes a right one, as whoever writes to a plain store can.

A new format is one more line in `TARGETS`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.fuzz import corpus
from tests.fuzz.corpus import KEY

from knotline.backends import encrypted_ring as ring
from knotline.backends import files_entry, keys
from knotline.backends.contract import Attachment, Entry
from knotline.backends.files_writer import attachment_of
from knotline.backends.keys import Lacking, Passphrase, RawKey
from knotline.backends.sqlite_find import pack, unpack
from knotline.codec import decode, digest, encode, make_dictionary, open_head, open_piece, private, public
from knotline.codec.bodies import Delta, Fork, Root, open_body
from knotline.codec.frames import links_of
from knotline.config import from_block, jsonc
from knotline.errors import ContractBroken, Error
from knotline.store import Store, decode_file, verify
from knotline.store.delta import apply
from knotline.store.log import attachment_check, open_attachment
from knotline.store.names import document_key, document_name, is_run, run_key, run_name
from knotline.store.seal import Revive, object_id
from knotline.testing import RawOracle
from knotline.testing.oracle import _Kept

__all__ = ["TARGETS", "Target", "attack"]


@dataclass(frozen=True)
class Target:
    """`share` says how many of a soak's runs it gets: slow ones get fewer."""

    read: Callable[[bytes], object]
    begin: Callable[[], Iterable[bytes]]
    may_raise: tuple[type[Exception], ...] = (Error,)
    share: float = 1.0


def attack(target: Target, data: bytes) -> bool:
    """One run: was it refused? Anything but the errors that may come passes through."""
    try:
        target.read(data)
    except ContractBroken:
        raise  # a bug of ours by its own words
    except target.may_raise:
        return True
    return False


# -- values and pieces -----------------------------------------------------------------------------------------


def _value(data: bytes) -> None:
    for kept in (False, True):
        try:
            value = decode(data, private=kept)
        except ContractBroken:
            raise
        except Error:
            continue
        if kept:
            again = encode(value)
            assert encode(decode(again, private=True)) == again
            public(value)


def _values() -> list[bytes]:
    found = corpus.plain()
    small = [encode(private(value)) for value in (1, "text", [1, (2, 3)], {"a": {1, 2}}, {1: 2}, 2**70, b"x", 1.5)]
    return [*small, *found.trees, *found.ops[:40]]


@cache
def _dictionary() -> Any:
    return make_dictionary(b"words and more words " * 20, "a seal")


def _piece(data: bytes) -> None:
    for seal in (None, lambda _: _dictionary(), lambda rev: make_dictionary(bytes(rev % 12), "a seal")):
        try:
            links, payload = open_piece(data, "a piece", seal=seal)
        except ContractBroken:
            raise
        except Error:
            continue
        assert links == links_of(data, "a piece")
        assert isinstance(payload, bytes)


def _pieces() -> list[bytes]:
    found = corpus.plain()
    return [*found.bodies, *list(found.objects.values())[:40]]


def _head(data: bytes) -> None:
    """As it is; and as a payload under a right check."""
    try:
        open_head(data, "run", 7)
    except Error as error:
        if isinstance(error, ContractBroken):
            raise
    entry_hash = digest(b"x", data)
    open_head(b"\x01" + entry_hash + digest(b"hd", entry_hash + data)[:8] + data, "run", 7)


def _heads() -> list[bytes]:
    heads = corpus.plain().heads
    return [*heads[::9], *(head[25:] for head in heads[::5])]


def _body(data: bytes) -> None:
    body = open_body(data, "a body")
    assert isinstance(body.tree if isinstance(body, Root) else b"", bytes)
    if isinstance(body, Fork):
        run_name(body.origin)
    elif isinstance(body, Delta):
        decode(body.ops, private=True)


# -- states ----------------------------------------------------------------------------------------------------

_HERE: Final = b"OBJECT GOES HERE"


@cache
def _payloads() -> dict[bytes, bytes]:
    return {name: open_piece(stored, "object")[1] for name, stored in corpus.plain().objects.items()}


def _tree(data: bytes) -> None:
    """A tree, and one object of the attacker's: the tree can name it, as everything that there is."""
    size = int.from_bytes(data[:2], "big")
    tree, payload = data[2 : 2 + size], data[2 + size :]
    name = object_id(b"", payload)
    for kept in (False, True):
        revive = Revive({**_payloads(), name: payload}, private=kept)
        try:
            decode(tree.replace(_HERE, name), resolve=revive, private=kept)
        except ContractBroken:
            raise
        except Error:
            continue


def _trees() -> list[bytes]:
    found = corpus.plain()
    objects = list(_payloads().values())
    made = [encode([1, 2, 3]), encode({"a": 1}), *objects[:3]]
    pairs = list(itertools.product(found.trees[:6], made))
    nodes = [
        b"\xd8\x64" + _HERE,
        b"\xd8\x66" + _HERE,
        b"\xc7\x17\x65\x93\x00\xc4\x10" + _HERE + b"\x91\x03",
        b"\xc7\x17\x65\x93\x01\xc4\x10" + _HERE + b"\x91\x03",
        b"\xc7\x28\x65\x93\x00\xc4\x20" + _HERE + _HERE + b"\x92\x03\x03",
    ]
    pairs += itertools.product(nodes, made)
    return [len(tree).to_bytes(2, "big") + tree + payload for tree, payload in pairs if len(tree) < 1 << 16]


@cache
def _base() -> tuple[bytes, dict[bytes, bytes]]:
    """A state with a long list in two leaves, a dict, a text."""
    leaf = encode([{"n": n, "text": "t"} for n in range(40)])
    name = object_id(b"", leaf)
    span = encode([0, name + name, [40, 40]])
    long = b"\xc7" + bytes((len(span), 101)) + span
    flat = encode({"d": {"k": 1, "l": [1, 2, 3]}, "t": "some text", "b": b"bytes"})
    return b"\x84" + flat[1:] + encode("log") + long, {name: leaf}


def _apply(data: bytes) -> None:
    tree, payloads = _base()
    for kept in (True, False):
        revive = Revive(payloads, private=kept)
        state = decode(tree, resolve=revive, private=kept)
        try:
            ops: Any = decode(data, resolve=revive, private=kept)
            apply(state, ops, revive.ropes if kept else {}, "an entry")
        except ContractBroken:
            raise
        except Error:
            continue


def _ops() -> list[bytes]:
    made: list[Any] = [
        [[1, ["log"], [[0, 1, [{"n": 1}]], [40, 2, []]]]],
        [[1, ["log", 3], []], [0, ["log", 3], ["n"], ["text", "u"], None]],
        [[0, ["log", 3], [], ["n", 5], ["text", "n"]]],
        [[2, ["t"], 1, 2, "new"], [2, ["b"], 0, 5, b"more"]],
        [[3, {"all": "new"}]],
        [[0, [], ["t"], ["u", 1], ["u", "d", "b", "log"]]],
        [[1, ["d", "l"], [[0, 3, [9]]]], [0, ["log", -1], [], [], None], [0, ["log", 7.5], [], [], None]],
    ]
    return [*(encode(private(ops)) for ops in made), *corpus.plain().ops[::4]]


def _attachment(data: bytes) -> None:
    try:
        open_attachment(b"rrun", Attachment(0, b"task", 0, 1, data))
    except Error as error:
        if isinstance(error, ContractBroken):
            raise
    check = attachment_check(b"rrun", 0, b"task", 0, 1, data)
    open_attachment(b"rrun", Attachment(0, b"task", 0, 1, check + data))


def _attachments() -> list[bytes]:
    attached = corpus.plain().attached
    return [*(each.data for each in attached), *(each.data[8:] for each in attached)]


def _name(data: bytes) -> None:
    run_name(data)
    document_name(data)
    is_run(data)


def _names() -> list[bytes]:
    return [*corpus.plain().keys, run_key("\ud800 naïve"), document_key("a" * 300, "模型")]


# -- a whole store ---------------------------------------------------------------------------------------------


@cache
def _stored() -> RawOracle:
    oracle = RawOracle()
    corpus.small(oracle)
    return oracle


def _store(data: bytes) -> None:
    """One entry of a small store has another head or body under a right hash; then the store is used.

    The bytes: which entry, what of it, and what it is instead.
    """
    known = _stored()
    oracle = RawOracle()
    oracle.log = [copy(kept) for kept in known.log]
    oracle.attached, oracle.blobs, oracle.saved = list(known.attached), dict(known.blobs), known.saved
    at = data[0] % len(oracle.log) if data else 0
    kept = oracle.log[at]
    _forge(kept, data[2:], head=bool(data[1:2] and data[1] & 1))
    store = Store(oracle, clock=lambda: 1_800_000_000_000_000, entropy=lambda n: b"\x06" * n)
    assert verify(store).entries
    uses: list[Callable[[], object]] = [
        lambda: [store.load("a", rev) for rev in range(6)],
        lambda: store.load("a"),
        lambda: store.load("f"),
        lambda: store.pins("a"),
        lambda: store.get("config", "x"),
        lambda: store.names("config"),
        lambda: store.find(["even"]),
        lambda: list(store.runs()),
        lambda: store.attachments("a"),
        lambda: store.append("a", {"n": 5}),
        lambda: store.undo("a"),
        lambda: store.prune("a", keep_from=4),
    ]
    for use in uses:
        try:
            use()
        except ContractBroken:
            raise
        except Error:
            continue


def _forge(kept: _Kept, data: bytes, *, head: bool) -> None:
    run, rev = kept.save.run, kept.save.rev
    body = kept.body if head else data
    said = data if head else kept.save.head[25:]
    try:
        links, payload = open_piece(body, "forged")
    except Error:
        links, payload = [], b""
    entry_hash = digest(b"ent", run, rev.to_bytes(4, "big"), said, b"".join(links), payload)
    kept.save = replace(kept.save, head=b"\x01" + entry_hash + digest(b"hd", entry_hash + said)[:8] + said)
    kept.body = body


def _stores() -> list[bytes]:
    found: list[bytes] = []
    for at, kept in enumerate(_stored().log):
        found += [bytes((at, 1)) + kept.save.head[25:], bytes((at, 0)) + kept.body]
        links, payload = open_piece(kept.body, "body")
        found.append(bytes((at, 0)) + len(links).to_bytes(3, "big") + b"".join(links) + b"\0" + payload)
        found.append(
            bytes((at, 0)) + b"\0\0\0\x02\0\0\0\x09" + (at % 4).to_bytes(4, "big") + b"(\xb5/\xfd\x20\x09I\0\0"
        )
    return found


# -- encryption ------------------------------------------------------------------------------------------------


def _sealed(data: bytes) -> None:
    """What authenticates nothing is refused; and nobody without the key makes what does."""
    backend, entries, objects, attached, _, owner = corpus.encrypted()
    cipher = backend._cipher
    kind, piece = data[:1], data[1:]
    entry = entries[0]
    if kind == b"h":
        true: object = entry.head
        backend._for(piece).open_head(piece, entry.run, entry.rev)
    elif kind == b"b":
        true = entry.body
        cipher.open_body(backend._head(entry).key, piece, entry.run, entry.rev)
    elif kind == b"o":
        oid = next(iter(objects))
        true = objects[oid]
        backend._for(piece).open_object(b"hidden", oid, piece)
    elif kind == b"a":
        hidden, each = attached[0]
        true = each.data
        backend._attachment(hidden, replace(each, data=piece))
    else:
        true = owner.encode()
        cipher.plain_owner(entry.run, piece.decode("utf-8", "replace"))
        assert bytes.fromhex(piece.decode("ascii")) == bytes.fromhex(owner)
        return
    assert piece == true, "it opened, and nobody sealed it"


def _seals() -> list[bytes]:
    _, entries, objects, attached, _, owner = corpus.encrypted()
    body = entries[0].body
    assert body is not None
    first = next(iter(objects.values()))
    return [b"h" + entries[0].head, b"b" + body, b"o" + first, b"a" + attached[0][1].data, b"l" + owner.encode()]


_CHEAP: Final = 256


def _slots(data: bytes) -> None:
    """JSON of key slots behind a right front, and what follows when a key is tried on it."""
    for head in (data, b"\xecK\x01K" + bytes(32) + data):
        try:
            found = ring.parse(Entry(ring.RING, 0, head, None, 0))
        except ContractBroken:
            raise
        except Error:
            continue
        assert all(slot.cost.sane for slot in found.slots)
        found.names()
        tried: list[Any] = [RawKey(KEY)]
        if all(slot.cost.memory * slot.cost.passes <= _CHEAP for slot in found.slots):
            tried.append(Passphrase("p"))
        try:
            ring.opened(found, tried, "a store")
        except Error as error:
            if isinstance(error, ContractBroken):
                raise


def _rings() -> list[bytes]:
    head = corpus.encrypted()[4]
    said = json.loads(head[36:])
    slot = {**said["slots"][0], "kind": "passphrase", "argon2id": [32, 1, 1]}
    rotated = {**said, "epoch": 1, "earlier": ["00" * 108], "slots": [slot]}
    return [head, head[36:], json.dumps({**said, "slots": [slot]}).encode(), json.dumps(rotated).encode()]


def _key(data: bytes) -> None:
    """What a file, a variable or a command holds."""
    for holds in ("key", "passphrase"):
        try:
            keys._held(data, holds, keys.Argon2Cost())
        except Lacking:
            continue


# -- settings --------------------------------------------------------------------------------------------------


def _settings(data: bytes) -> None:
    from_block(jsonc.parse(data.decode("utf-8", "replace"), "config.json"), base=Path("/x"), cwd=Path("/x"))


def _setting_files() -> list[bytes]:
    return [
        b'{ "persistence": { "storage_type": "sqlite", "base_dir": "~/x",}, // where\n "encryption": {"key_env": "K"}}',
        b'/* all */ {"persistence": {"path": "a.db", "project_name": "p"}, "other": [1, 2.5, null, true, "// text"]}',
        b'{"encryption": {"key_file": "k", "passphrase_command": ["pass", "show", "x"]}}',
    ]


# -- files -----------------------------------------------------------------------------------------------------


def _page(data: bytes) -> None:
    text = data[: -len(files_entry._END) - files_entry._CHECK] + files_entry._check(
        data[: -len(files_entry._END) - files_entry._CHECK]
    )
    for given in (data, text + files_entry._END):
        for bodies in (False, True):
            try:
                page = files_entry.open_page(given, "entry", bodies=bodies)
            except Error:
                continue
            if page.body is not None and page.head:
                assert files_entry.open_page(files_entry.close_page(page), "again").head == page.head


def _beside(data: bytes) -> None:
    attachment_of(data, b"rall")


TARGETS: Final[dict[str, Target]] = {
    "values": Target(_value, _values, share=3),
    "pieces": Target(_piece, _pieces),
    "heads": Target(_head, _heads),
    "bodies": Target(_body, lambda: corpus.plain().payloads),
    "trees": Target(_tree, _trees),
    "operations": Target(_apply, _ops),
    "attachments": Target(_attachment, _attachments),
    "names": Target(_name, _names, share=0.5),
    "tokens": Target(unpack, lambda: [pack([1, 2**32 - 1]) or b""], share=0.1),
    "stores": Target(_store, _stores, share=0.05),
    "encrypted": Target(_sealed, _seals),
    "key slots": Target(_slots, _rings, share=0.5),
    "keys": Target(_key, lambda: [KEY, KEY.hex().encode(), b"passphrase\r\n", b"AAAA_-" * 7], share=0.5),
    "settings": Target(_settings, _setting_files, share=0.3),
    "pages": Target(_page, corpus.pages),
    "files beside": Target(_beside, corpus.beside, share=0.5),
    "portable files": Target(lambda data: decode_file(data, key=KEY), corpus.portable, share=0.2),
}
