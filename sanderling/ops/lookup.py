"""Look-ups: embeddings, hash tables, locality-sensitive hashing, skip-grams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..ir import Array, Op, Quant, Shape
from .base import (
    MOVABLE,
    Arrays,
    Run,
    Spec,
    Specs,
    State,
    attr,
    define,
    elements,
    fitting,
    on,
    operand,
    out_spec,
    require,
    shaped,
    sized,
    unfit,
)
from .control import handle, resource_key
from .farmhash import fingerprint64
from .fixed import wrap32
from .gemm import block_scales, check_blocks, signed
from .index import check_range

MOST_GRAMS = 1 << 22  # skip-grams grow like a binomial; more than this is an attack or a mistake


def _rows(op: Op, table: Array, ids: Array) -> Array:
    """Rows of a table; unlike NumPy, negative numbers do not count from the end."""
    check_range(op, ids, table.shape[0])
    return table[ids]


# -- EMBEDDING_LOOKUP ---------------------------------------------------------------------------


def _embedded(op: Op, ids: Shape, table: Shape) -> Shape:
    fits = len(ids) == 1 and len(table) >= 2
    require(fits, op, "it takes a vector of indices and a table")
    values, out = op.inputs[1], op.outputs[0]
    if values is not None and values.quant is not None and values.dtype is not out.dtype:
        _check_rows(op, values.quant, table)
    return (*ids, *table[1:])


def _check_rows(op: Op, quant: Quant, table: Shape) -> None:
    """The scales of a table that is looked up as reals."""
    if quant.block is not None:
        check_blocks(op, quant.block, table)
        return
    require(not np.any(quant.zero_point), op, "only symmetric tables are supported")
    require(quant.scale.size in (1, table[0]), op, "scales must be one, or one a row")


def _embedding(op: Op, ids: Array, table: Array) -> Array:
    _embedded(op, ids.shape, table.shape)
    rows = _rows(op, table, ids)
    values, out = op.operand(1), op.outputs[0]
    if values.dtype is out.dtype:
        return rows
    # The kernel reads unsigned codes as signed ones, so 255 means -1.
    scale = _row_scales(op, values.quantisation, table, ids)
    return (signed(rows).astype(np.float32) * scale).astype(out.dtype.numpy)


def _row_scales(op: Op, quant: Quant, table: Array, ids: Array) -> Array:
    """The scale of every element looked up, in a shape that broadcasts to the rows."""
    if quant.block is not None:
        return np.repeat(block_scales(op, quant.block, table)[ids], quant.block.block_size, axis=1)
    scale = np.broadcast_to(quant.scale, table.shape[:1])[ids]
    return scale.reshape(-1, *[1] * (table.ndim - 1))


# -- EMBEDDING_LOOKUP_SPARSE --------------------------------------------------------------------


def _infer_sparse(op: Op, specs: Specs) -> Spec:
    shape, values = operand(op, specs, 2), operand(op, specs, 4)
    if shape.value is None or values.shape is None:
        return out_spec(op, None)
    return out_spec(op, (*map(int, shape.value[:-1]), *values.shape[1:]))


def _check_sparse(op: Op, ids: Shape, places: Shape, dense: Shape, weights: Shape) -> None:
    fits = places == (*ids, *dense) and dense[0] > 0
    require(fits, op, "indices must have a row for each id and a column for each dimension")
    require(weights == ids, op, "ids and weights must correspond")


def _embedding_sparse(
    op: Op, ids: Array, places: Array, dense: Array, weights: Array, table: Array
) -> Array:
    """Weighted sums of table rows, one for each cell of the dense shape but its last dimension."""
    _check_sparse(op, ids.shape, places.shape, dense.shape, weights.shape)
    outer, width = sized(op, dense[:-1]), table.shape[1:]
    places = places[:, :-1]
    check_range(op, places, outer)
    rows = _rows(op, table, ids)
    cell = np.ravel_multi_index(tuple(places.T), outer) if outer else np.zeros(ids.size, np.int64)
    total = np.zeros((elements(outer), *width), np.float32)
    np.add.at(total, cell, rows * weights.reshape(-1, *[1] * len(width)))
    return _combined(op, total, cell, weights).reshape(*outer, *width)


def _combined(op: Op, total: Array, cell: Array, weights: Array) -> Array:
    kind = attr(op, "combiner")
    if kind == "SUM":
        return total
    norm = np.zeros(len(total), np.float32)
    np.add.at(norm, cell, weights if kind == "MEAN" else weights * weights)
    divisor = norm if kind == "MEAN" else np.sqrt(norm)
    # A cell without ids stays zero; one whose weights cancel does not.
    divisor[np.setdiff1d(np.arange(len(total)), cell)] = 1
    return total / divisor.reshape(-1, *[1] * (total.ndim - 1))


# -- HASHTABLE_LOOKUP: keys sorted in the model -------------------------------------------------


def _infer_table_lookup(op: Op, specs: Specs) -> list[Spec]:
    ids, values = operand(op, specs), operand(op, specs, 2)
    known = ids.shape is not None and values.shape is not None
    rows = (*ids.known, *values.known[1:]) if known else None
    return [out_spec(op, rows), out_spec(op, ids.shape, 1)]


def _check_keys(op: Op, keys: Shape, values: Shape) -> None:
    fits = keys[0] > 0 and keys == values[:1]
    require(fits, op, "it takes a key for each value, and at least one")


def _table_lookup(op: Op, ids: Array, keys: Array, values: Array) -> list[Array]:
    _check_keys(op, keys.shape, values.shape)
    place = np.minimum(np.searchsorted(keys, ids), keys.size - 1)
    hit = keys[place] == ids
    found = values[place].copy()
    found[~hit] = b"" if values.dtype == object else 0
    return [found, hit.astype(np.uint8)]


# -- HASHTABLE: tables that are resources -------------------------------------------------------

_TABLE_TYPES = (("INT64", "STRING"), ("STRING", "INT64"))


def _hashtable(op: Op, inputs: Arrays, state: State) -> Array | Sequence[Array]:
    return _table_maker(op, inputs)(inputs, state)


def _table_maker(op: Op, inputs: Arrays) -> Run:
    """prepare: the handle."""
    kinds = (attr(op, "key_dtype"), attr(op, "value_dtype"))
    require(
        kinds in _TABLE_TYPES,
        op,
        f"a table from {kinds[0]} to {kinds[1]} is not supported",
        "keys and values are INT64 and STRING, or STRING and INT64",
    )
    key = int(attr(op, "table_id"))
    made = handle(key, (1,))
    made.flags.writeable = False

    def run(inputs: Arrays, state: State) -> Array:
        state.tables.setdefault(key, None)  # None: made, but not filled
        return made

    return run


def _table(op: Op, handle: Array, state: State) -> dict[object, object]:
    key = resource_key(op, handle)
    found: dict[object, object] | None = state.tables.get(key)
    if found is None:
        what = f"hash table {key} is used before it is filled"
        raise unfit(op, what, "run the graph that fills it first")
    return found


def _import(op: Op, table: Array, keys: Array, values: Array, state: State) -> list[Array]:
    """Only the first import counts, and of equal keys the first."""
    key = resource_key(op, table)
    require(key in state.tables, op, f"there is no hash table {key}")
    require(keys.shape == values.shape, op, "it takes a value for each key")
    if state.tables[key] is None:
        pairs = zip(keys.reshape(-1)[::-1].tolist(), values.reshape(-1)[::-1].tolist(), strict=True)
        state.tables[key] = dict(pairs)
    return []


def _find(op: Op, handle: Array, keys: Array, default: Array, state: State) -> Array:
    table = _table(op, handle, state)
    require(default.size > 0, op, "it takes a default value")
    fallback = default.item(0)
    found = np.empty(keys.size, op.outputs[0].dtype.numpy)
    found[:] = [table.get(key, fallback) for key in keys.reshape(-1).tolist()]
    return found.reshape(keys.shape)


def _size(op: Op, handle: Array, state: State) -> Array:
    return np.array([len(_table(op, handle, state))], op.outputs[0].dtype.numpy)


# -- LSH_PROJECTION -----------------------------------------------------------------------------


def _lsh_shape(op: Op, seeds: Shape) -> Shape:
    kind = attr(op, "type")
    fits = kind in ("SPARSE", "DENSE") and len(seeds) == 2 and seeds[1] <= 32
    require(fits, op, "it takes hash functions of at most 32 bits, and the type SPARSE or DENSE")
    return (seeds[0] if kind == "SPARSE" else seeds[0] * seeds[1],)


def _check_items(op: Op, seeds: Shape, items: Shape, weights: Shape | None = None) -> None:
    _lsh_shape(op, seeds)
    require(items[0] >= 1, op, "it takes at least one item")
    fits = weights is None or weights == items[:1]
    require(fits, op, f"weights {weights} for items {items}", "it takes one weight an item")


def _lsh(op: Op, seeds: Array, items: Array, *weights: Array) -> Array:
    """A bit for each seed: the sign of the weighted sum of the items' fingerprints."""
    _check_items(op, seeds.shape, items.shape, *(w.shape for w in weights))
    functions, bits = seeds.shape
    signs = _signs(seeds.astype(np.float32).reshape(-1), items, *weights).reshape(functions, bits)
    if attr(op, "type") == "DENSE":
        return signs.reshape(-1).astype(np.int32)
    powers = np.int64(1) << np.arange(bits - 1, -1, -1, dtype=np.int64)
    offset = np.arange(functions, dtype=np.int64) << bits
    return wrap32(signs @ powers + offset).astype(np.int32)


def _signs(seeds: Array, items: Array, weights: Array | None = None) -> Array:
    raw = np.ascontiguousarray(items).reshape(len(items), -1).view(np.uint8)
    keys = np.empty((len(seeds), *raw.shape[:1], 4 + raw.shape[1]), np.uint8)
    keys[..., :4] = seeds.view(np.uint8).reshape(-1, 1, 4)
    keys[..., 4:] = raw
    scores = fingerprint64(keys).view(np.int64).astype(np.float64)
    if weights is not None:
        scores = scores * weights.astype(np.float64)
    # cumsum adds in order, as the kernel does; sum does not.
    return (np.cumsum(scores, axis=1)[:, -1] > 0).astype(np.int64)


# -- SKIP_GRAM ----------------------------------------------------------------------------------


def _skip_gram(op: Op, text: Array) -> Array:
    require(text.size > 0, op, "it takes a string")
    size = int(attr(op, "ngram_size"))
    require(size >= 1, op, f"n-grams of {size} words cannot be")
    first = text.reshape(-1)[0]
    words = _words(first.encode() if isinstance(first, str) else bytes(first))
    skip, whole = int(attr(op, "max_skip_size")), bool(attr(op, "include_all_ngrams"))
    grams = []
    if len(words) >= size:
        for count, chosen in enumerate(_grams(len(words), size, skip)):
            require(count < MOST_GRAMS, op, f"more than {MOST_GRAMS} skip-grams")
            if whole or len(chosen) == size:
                grams.append(b" ".join(words[i] for i in chosen))
    found = np.empty(len(grams), np.object_)
    found[:] = grams
    return found


def _words(text: bytes) -> list[bytes]:
    """The kernel looks for blanks from the second character on, so a leading one eats a word."""
    blank = re.compile(rb"[ \t\n\v\f\r]")
    words, start = [], 0
    for match in blank.finditer(text, 1):
        if match.start() > start and not blank.match(text, start):
            words.append(text[start : match.start()])
        start = match.end()
    return [*words, text[start:]] if len(text) > start else words


def _grams(words: int, size: int, skip: int) -> Iterator[list[int]]:
    """Rising word numbers with gaps of at most `skip`; a choice comes after its extensions."""
    chosen: list[int] = []
    levels = [iter(range(words))]
    while levels:
        word = next(levels[-1], None)
        if word is not None:
            chosen.append(word)
            reach = min(words, word + skip + 2) if len(chosen) < size else 0
            levels.append(iter(range(word + 1, reach)))
            continue
        levels.pop()
        if chosen:
            yield chosen
            chosen.pop()


# -- rows ---------------------------------------------------------------------------------------

define(
    "EMBEDDING_LOOKUP",
    infer=shaped(_embedded, data=[0, 1]),
    evaluate=on(_embedding),
    family="lookup",
    takes=f"ids[1]: i32, x[2-]: {MOVABLE} i4 i2 -> x | "
    "ids[1]: i32, x[2-]: i8Q u8Q i4Q i2Q -> f32 f16",
    notes="i8, u8, i4, i2 tables to f32 or f16; scales per tensor, row or block",
    picks=1,
)
define(
    "EMBEDDING_LOOKUP_SPARSE",
    infer=fitting(_check_sparse, range(4), _infer_sparse),
    evaluate=on(_embedding_sparse),
    family="lookup",
    takes="ids[1]: i32, places[2]: i32, shape[1]: i32, weights[1]: f32, x[2-]: f32 -> f32",
)
define(
    "HASHTABLE_LOOKUP",
    infer=fitting(_check_keys, [1, 2], _infer_table_lookup),
    evaluate=on(_table_lookup),
    family="lookup",
    takes=f"ids: i32, keys[1]: i32, x[1-]: {MOVABLE} str -> x, u8",
)
define(
    "LSH_PROJECTION",
    infer=fitting(_check_items, range(3), shaped(_lsh_shape)),
    evaluate=on(_lsh),
    family="lookup",
    takes=f"seeds[2]: f32, x[1-]: {MOVABLE}, weights?: f32 -> i32",
)
define(
    "SKIP_GRAM",
    infer=lambda op, specs: out_spec(op, None),
    evaluate=on(_skip_gram),
    family="lookup",
    takes="x: str -> str",
)
define(
    "HASHTABLE",
    infer=lambda op, specs: out_spec(op, (1,)),
    evaluate=_hashtable,
    prepare=_table_maker,
    family="lookup",
    takes="-> resource",
    stateful=True,
)
define(
    "HASHTABLE_IMPORT",
    infer=lambda op, specs: [],
    evaluate=on(_import),
    family="lookup",
    stateful=True,
    takes="table: resource, x: i64, values: str -> | table: resource, x: str, values: i64 ->",
)
define(
    "HASHTABLE_FIND",
    infer=lambda op, specs: out_spec(op, operand(op, specs, 1).shape),
    evaluate=on(_find),
    family="lookup",
    stateful=True,
    takes="table: resource, x: i64, default: str -> str | "
    "table: resource, x: str, default: i64 -> i64",
)
define(
    "HASHTABLE_SIZE",
    infer=lambda op, specs: out_spec(op, (1,)),
    evaluate=on(_size),
    family="lookup",
    takes="table: resource -> i64",
    stateful=True,
)
