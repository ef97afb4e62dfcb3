"""Along vectors: lanes combined, lanes that count, squares of lanes, and rows swept by a few
vectors at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .emit import I1, I32, Emitter, Int, Value, vector

# This many elements are whole vectors on any target.
WHOLE = 64


def horizontal(e: Emitter, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined, by halves."""
    lanes = x.type.count
    while lanes > 1:
        lanes //= 2
        high = e.shuffle(x, None, [lanes + i for i in range(lanes)])
        low = e.shuffle(x, None, list(range(lanes)))
        x = combine(low, high)
    return e.b.extract_element(x, I32(0))


def first_lanes(e: Emitter, x: Value, count: int, fill: Value) -> Value:
    """The first lanes of x, the others of fill."""
    lanes = x.type.count
    if count >= lanes:
        return x
    mask = e.const(vector(I1, lanes), [i < count for i in range(lanes)])
    return e.b.select(mask, x, fill)


Body = Callable[[Int, int, list[Value]], list[Value]]


def sweep(
    e: Emitter,
    whole: Int,
    tail: int,
    lanes: int,
    start: Sequence[Value],
    body: Body,
    both: Callable[[Value, Value], Value] | None = None,
) -> list[Value]:
    """Along a row: body(place, lanes that count, carried) for each vector, the last partial.

    both: how two of a carried value become one; then four of each are carried, as one would have to
    be waited for.
    """
    place: Int = 0
    held = list(start)
    if both is not None:
        held, place = _fourfold(e, whole, lanes, start, body, both)
    with e.loop(place, whole, lanes, carry=held) as (i, now):
        e.carry(body(i, lanes, now))
    done = e.carried
    return body(whole, tail, done) if tail else done


def _fourfold(
    e: Emitter,
    whole: Int,
    lanes: int,
    start: Sequence[Value],
    body: Body,
    both: Callable[[Value, Value], Value],
) -> tuple[list[Value], Int]:
    n = len(start)
    with e.loop(0, e.sub(whole, 4 * lanes - 1), 4 * lanes, carry=list(start) * 4) as (i, now):
        new = [body(e.add(i, u * lanes), lanes, now[u * n : (u + 1) * n]) for u in range(4)]
        e.carry([value for values in new for value in values])
    found = e.carried
    a, b, c, d = (found[u * n : (u + 1) * n] for u in range(4))
    joined = [both(both(p, q), both(r, s)) for p, q, r, s in zip(a, b, c, d, strict=True)]
    return joined, i


def transpose(e: Emitter, rows: Sequence[Value]) -> list[Value]:
    """A square of vectors: exchange blocks off the diagonal, halving them."""
    found, lanes = list(rows), len(rows)
    size = lanes // 2
    while size:
        low = [i if not i & size else lanes + i - size for i in range(lanes)]
        high = [i + size if not i & size else lanes + i for i in range(lanes)]
        for i in range(lanes):
            if not i & size:
                a, b = found[i], found[i + size]
                found[i], found[i + size] = e.shuffle(a, b, low), e.shuffle(a, b, high)
        size //= 2
    return found
