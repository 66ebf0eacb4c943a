"""Values to canonical bytes and back, and the private copies in between: no pickle, no import by name.

A value has three forms: the *user's* (anything storable), the *private* one (`private`: checked, cut off from later
changes, compared by `fits` and `same`), and its *bytes* (`encode`, `decode`). What equality means, and what the
bytes are, is written in `values.py`; the shapes and extension codes are in `forms.py`.
"""

from __future__ import annotations

from knotline.codec.compare import fits, same
from knotline.codec.forms import MAX_BYTES, MAX_DEPTH, Boxed, Node, OddDict, OddStr, exact
from knotline.codec.frames import (
    ID,
    close_piece,
    dictionary_compressor,
    digest,
    digest_front,
    digest_piece,
    links_of,
    make_dictionary,
    open_piece,
    recast_piece,
    seal_of,
)
from knotline.codec.freeze import freeze, thaw
from knotline.codec.frozen import FrozenDict, FrozenList, identical, strictly
from knotline.codec.heads import PREV, check_body, check_piece, close_head, glance, open_head
from knotline.codec.private import is_leaf, private, show_path
from knotline.codec.reading import decode, public
from knotline.codec.types import serializable
from knotline.codec.values import encode

__all__ = [
    "ID",
    "MAX_BYTES",
    "MAX_DEPTH",
    "PREV",
    "Boxed",
    "FrozenDict",
    "FrozenList",
    "Node",
    "OddDict",
    "OddStr",
    "check_body",
    "check_piece",
    "close_head",
    "close_piece",
    "decode",
    "dictionary_compressor",
    "digest",
    "digest_front",
    "digest_piece",
    "encode",
    "exact",
    "fits",
    "freeze",
    "glance",
    "identical",
    "is_leaf",
    "links_of",
    "make_dictionary",
    "open_head",
    "open_piece",
    "private",
    "public",
    "recast_piece",
    "same",
    "seal_of",
    "serializable",
    "show_path",
    "strictly",
    "thaw",
]
