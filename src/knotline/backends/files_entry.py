"""An entry as one readable file, and exactly the same head and body back.

What the user stored stands at the top, under its own names; everything else is in a block after it. The last line is a
check over all text before it: a file that was edited or damaged is never read as good. Hashes are over the canonical
bytes, which are made again when the file is read; where the readable form would not give the same bytes, the file
has base64 instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from blake3 import blake3
from ormsgpack import packb

from knotline.backends.readable import BLOCK, canonical, parse, show, write
from knotline.codec.bodies import Body, Delta, Fork, Nothing, Root, close_body, open_body
from knotline.codec.frames import ID, close_piece, digest, open_piece
from knotline.errors import Damaged, Error
from knotline.records import OPS

__all__ = ["Page", "close_page", "open_page", "state_text"]

_CHECK: Final = 16
_END: Final = b'"\n }\n}\n'
_HEAD: Final = 25
"""Version, hash and check: what is in front of a head's payload."""
_FIELDS: Final = 10
_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Page:
    """All that is in an entry's file."""

    run: bytes
    rev: int
    head: bytes
    body: bytes | None
    tokens: tuple[int, ...] = ()
    objects: tuple[bytes, ...] = ()
    """Those that its save carried: they belong to what must be there for the entry to be there."""
    drops: tuple[tuple[int, int], ...] = ()
    """`(rev, below)`: entry `rev` dropped all below. Only those that a later, further drop did not swallow."""
    alias: tuple[str, str] | None = None
    after: int | None = None
    """The first revision that was not known to be durable when this was written; None if all were."""
    loose: bool = False
    """It was written without waiting for the disk: its objects may be lost with the power."""

    @property
    def floor(self) -> int:
        return self.drops[0][1] if self.drops else 0


# -- writing -----------------------------------------------------------------------------------------------


def close_page(page: Page) -> bytes:
    body = page.body or b""
    raw_head: dict[str, Any] = {"head": page.head}
    raw_body: tuple[dict[str, Any], dict[str, Any]] = {}, {"form": "bytes", "bytes": body}
    head, opened = _head_shown(page), _body_shown(body)
    for shown, (top, form) in (
        (head or raw_head, opened or raw_body),
        (head or raw_head, raw_body),
        (raw_head, raw_body),
    ):
        text = _text(top, {**_front(page), **shown, **form, **_back(page)})
        # Many bytes may have one readable form; only one of them comes back.
        if text is not None and _same(text, page):
            return text
    raise Damaged(f"entry {page.run!r} at {page.rev}", why="it cannot be written as text")


def _same(text: bytes, page: Page) -> bool:
    try:
        return open_page(text, "", bodies=True) == page
    except Error:
        return False


def _text(top: dict[str, Any], block: dict[str, Any]) -> bytes | None:
    try:
        text = write({**top, BLOCK: {**block, "check": ""}})
    except (ValueError, TypeError, RecursionError):
        return None
    text = text[: -len(_END) + 1]
    return text + _check(text) + _END


def _check(text: bytes) -> bytes:
    return blake3(text).hexdigest(_CHECK // 2).encode()


def _front(page: Page) -> dict[str, Any]:
    try:
        run: str | bytes = page.run.decode()
    except UnicodeDecodeError:
        run = page.run
    return {"entry": 1, "run": run, "rev": page.rev}


def _back(page: Page) -> dict[str, Any]:
    back: dict[str, Any] = {}
    if page.tokens:
        back["tokens"] = page.tokens
    if page.objects:
        back["objects"] = [oid.hex() for oid in page.objects]
    if page.drops:
        back["drops"] = page.drops
    if page.alias is not None:
        back["alias"] = [_name(part) for part in page.alias]
    if page.after is not None:
        back["after"] = page.after
    if page.loose:
        back["loose"] = True
    return back


def _name(name: str) -> str | bytes:
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")
    return name


def _head_shown(page: Page) -> dict[str, Any] | None:
    """Only what is not as usual: a move is to its own revision, from the one before."""
    head = page.head
    try:
        fields = cast("list[Any]", show(head[_HEAD:]))
        op, at, epoch, pos, parent, undo, redo, prev, writer, note = fields
        said: dict[str, Any] = {"op": OPS[op], "time": _time(at)}
        for name, value, usual in (
            ("epoch", epoch, 0),
            ("pos", pos, 0),
            ("parent", parent, 1),
            ("undo", undo, 1),
            ("redo", redo, -1),
        ):
            if value != usual:
                said[name] = value if name == "epoch" else None if value < 0 else page.rev - value
        if note:
            said["note"] = note
        return {**said, "hash": head[1 : 1 + ID].hex(), "prev": prev.hex(), "writer": writer.hex()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return None


def _time(at: int) -> str:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - at the top it would look like a clock

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _body_shown(body: bytes) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What stands at the top, and what the block says of it."""
    try:
        links, payload = open_piece(body, "body")
        opened = open_body(payload, "body")
        top, form = _form(opened)
    except (Error, ValueError, TypeError, LookupError, AttributeError):
        return None
    if links:
        form["links"] = [link.hex() for link in links]
    return top, form


def _form(body: Body) -> tuple[dict[str, Any], dict[str, Any]]:
    match body:
        case Nothing():
            return {}, {"form": "nothing"}
        case Root(fresh, tree):
            state = show(tree)
            form = {"fresh": fresh} if fresh else {}
            if type(state) is dict:
                return cast("dict[str, Any]", state), {"form": "state", **form}
            return {"value": state}, {"form": "value", **form}
        case Delta(base, anchor, ops):
            changes = [_change(op) for op in cast("list[Any]", show(ops))]
            return {"base": base, "changes": changes}, {"form": "changes", "anchor": anchor}
        case Fork(origin, rev, origin_hash):
            return {"fork": {"origin": origin, "rev": rev, "hash": origin_hash.hex()}}, {"form": "fork"}


def _change(op: list[Any]) -> dict[str, Any]:
    match op:
        case [0, path, removed, pairs, order]:
            said: dict[str, Any] = {"in": path}
            if removed:
                said["remove"] = removed
            keys = pairs[::2]
            if all(type(key) is str for key in keys) and len(set(keys)) == len(keys):
                said["set"] = dict(zip([f"${k}" if k[:1] == "$" else k for k in keys], pairs[1::2], strict=True))
            else:
                said["pairs"] = pairs
            return said if order is None else {**said, "order": order}
        case [1, path, splices]:
            return {"in": path, "splice": splices}
        case [2, path, at, count, text]:
            return {"in": path, "text": [at, count, text]}
        case [3, value]:
            return {"state": value}
        case _:
            raise ValueError("another operation")


# -- reading -----------------------------------------------------------------------------------------------


def open_page(text: bytes, what: str, *, bodies: bool = True) -> Page:
    """Damaged for anything but what `close_page` writes."""
    end = len(text) - len(_END) - _CHECK
    if end < 0 or text[end + _CHECK :] != _END or _check(text[:end]) != text[end : end + _CHECK]:
        raise Damaged(what, why="it is not the text that was written")
    try:
        top, block = parse(text)
        run, rev = block["run"], block["rev"]
        alias = block.get("alias")
        page = Page(
            run=run if type(run) is bytes else run.encode(),
            rev=rev,
            head=_head(block, rev),
            body=_body(top, block) if bodies else None,
            tokens=tuple(block.get("tokens", ())),
            objects=tuple(map(bytes.fromhex, block.get("objects", ()))),
            drops=tuple((at, below) for at, below in block.get("drops", ())),
            alias=None if alias is None else (_text_of(alias[0]), _text_of(alias[1])),
            after=block.get("after"),
            loose=block.get("loose", False),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise Damaged(what, why=f"it is not an entry: {error}") from error
    return page


def _text_of(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogatepass")


def _head(block: dict[str, Any], rev: int) -> bytes:
    head = block.get("head")
    if head is not None:
        return head
    revs = [block.get(name, rev - usual) for name, usual in (("pos", 0), ("parent", 1), ("undo", 1))]
    fields = [
        OPS.index(block["op"]),
        _micros(block["time"]),
        block.get("epoch", 0),
        *(-1 if target is None else rev - target for target in revs),
        -1 if block.get("redo") is None else rev - block["redo"],
        bytes.fromhex(block["prev"]),
        bytes.fromhex(block["writer"]),
        block.get("note", {}),
    ]
    payload = canonical(fields)
    entry_hash = bytes.fromhex(block["hash"])
    return b"\x01" + entry_hash + digest(b"hd", entry_hash + payload)[:8] + payload


def _micros(text: str) -> int:
    from datetime import UTC, datetime  # noqa: PLC0415 - as in `_time`

    past = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * _SECOND + past.microseconds


def _body(top: dict[str, Any], block: dict[str, Any]) -> bytes:
    form: str = block["form"]
    if form == "bytes":
        return block["bytes"]
    links = [bytes.fromhex(link) for link in block.get("links", ())]
    return close_piece(links, close_body(_BODIES[form](top, block)))


def _delta(top: dict[str, Any], block: dict[str, Any]) -> Body:
    return Delta(top["base"], block["anchor"], canonical([_operation(said) for said in top["changes"]]))


def _operation(said: dict[str, Any]) -> list[Any]:
    if "in" not in said:
        return [3, said["state"]]
    if "splice" in said:
        return [1, said["in"], said["splice"]]
    if "text" in said:
        return [2, said["in"], *said["text"]]
    pairs: Any = said.get("pairs")
    if pairs is None:
        pairs = [part for pair in said["set"].items() for part in pair]
    return [0, said["in"], said.get("remove", []), pairs, said.get("order")]


def _fork(top: dict[str, Any], _: dict[str, Any]) -> Body:
    fork = top["fork"]
    return Fork(fork["origin"], fork["rev"], bytes.fromhex(fork["hash"]))


_BODIES: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], Body]]] = {
    "nothing": lambda _top, _block: Nothing(),
    "state": lambda top, block: Root(block.get("fresh", 0), packb(top)),
    "value": lambda top, block: Root(block.get("fresh", 0), canonical(top["value"])),
    "changes": _delta,
    "fork": _fork,
}


# -- what a document shows elsewhere -----------------------------------------------------------------------


def state_text(body: bytes, objects: Callable[[bytes], bytes | None], *, indent: int = 1) -> bytes | None:
    """The whole state of a body as JSON, what stands apart included; None if it holds none or a part is missing."""

    def resolve(oid: bytes) -> bytes | None:
        stored = objects(oid)
        return None if stored is None else open_piece(stored, f"object {oid.hex()}")[1]

    try:
        opened = open_body(open_piece(body, "body")[1], "body")
        return write(show(opened.tree, resolve=resolve), indent=indent) if isinstance(opened, Root) else None
    except (Error, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
