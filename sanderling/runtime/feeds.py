"""What a caller may feed: by name, and converted where the types alone say that it is safe.

| given                            | for an input of                                        |
| -------------------------------- | ------------------------------------------------------ |
| an array of the input's type     | that type: read in place where it is contiguous        |
| an array of floats               | floats of any width, complex numbers                   |
| an array of integers             | wider integers that stand for themselves (no quantisation) |
| Python numbers, lists of them    | any integers that hold them; integers also for floats  |
| str, bytes, arrays of them       | strings                                                |

All else is refused, whatever the values are: a uint8 picture is no int8 picture, and no picture of
0 to 1 either, though an array of zeros could pass for all three.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..ir import Array, DType, Shape, Tensor


def take(
    wanted: Mapping[str, Tensor], feeds: Mapping[str, npt.ArrayLike], copy: bool = True
) -> dict[Tensor, Array]:
    """Match arrays to tensors by name, and check them."""
    if not isinstance(feeds, Mapping):
        names = ", ".join(f"{n!r}: array" for n in wanted)
        raise InputError(
            f"feeds is of type {type(feeds).__name__}, not arrays by name",
            where="session.run",
            fix=f"write session.run({{{names}}}), or session({', '.join(wanted)}) by place",
        )
    unknown = [name for name in feeds if name not in wanted]
    missing = [name for name in wanted if name not in feeds]
    if unknown or missing:
        raise InputError(
            " and ".join(
                [f"there is no input '{n}'" for n in unknown]
                + [f"input '{n}' is missing" for n in missing]
            ),
            fix="the inputs are " + ", ".join(f"{n} {t.type_text}" for n, t in wanted.items()),
        )
    return {t: as_fed(t, feeds[name], name, copy) for name, t in wanted.items()}


def as_fed(tensor: Tensor, value: npt.ArrayLike, name: str, copy: bool = True) -> Array:
    """The caller's array itself where type and layout fit; a safe conversion otherwise.

    copy=False insists on the caller's own array, for bindings.
    """
    array = as_array(tensor, value, name)
    if tensor.dtype is DType.STRING and copy:
        array = as_bytes(array)
    elif array.dtype != tensor.dtype.numpy:
        array = _converted(tensor, value, array, name, copy)
    check_shape(tensor, array.shape, name)
    if not array.flags.c_contiguous:
        if not copy:
            raise InputError(
                "the array is not contiguous",
                where=f"input '{name}'",
                fix="bind np.ascontiguousarray(x)",
            )
        array = np.ascontiguousarray(array)
    return array


def as_array(tensor: Tensor, value: npt.ArrayLike, name: str) -> Array:
    """The value as an array, of its own type where it has one."""
    strings = tensor.dtype is DType.STRING and not isinstance(value, np.ndarray)
    try:  # an array of bytes would cut off the NULs that they end in
        return np.asarray(value, np.object_ if strings else None)
    except (ValueError, OverflowError) as error:  # lists of unequal length, too large a number
        raise InputError(
            f"it is not an array: {error}",
            where=f"input '{name}'",
            fix="give an array, or lists of equal length",
        ) from error


def _converted(tensor: Tensor, value: object, array: Array, name: str, copy: bool) -> Array:
    plain = _is_plain(value, array) and (tensor.dtype.is_integer or tensor.dtype.is_float)
    if not copy or not (plain or converts(array, tensor)):
        raise InputError(
            f"{_given(value, array)}, the model takes {tensor.dtype.numpy}",
            where=f"input '{name}'",
            fix=type_hint(tensor, array, f"session.entry(None).inputs[{name!r}]"),
        )
    if plain:
        _check_range(tensor, array, name)
    return array.astype(tensor.dtype.numpy)


def _given(value: object, array: Array) -> str:
    """What came, in the caller's words: text and None are arrays only to NumPy."""
    if array.dtype.kind in "OSU" and not isinstance(value, np.ndarray):
        return f"a value of type {type(value).__name__}"
    return f"an array of {array.dtype}"


def converts(array: Array, tensor: Tensor) -> bool:
    """Whether an array of this type is taken for the tensor: see the table above."""
    have, want = array.dtype, tensor.dtype.numpy
    if have.newbyteorder("=") == want:
        return True
    if have.kind in "iu":
        widens = want.kind in "iu" and np.can_cast(have, want, "safe")
        return widens and not is_quantized(tensor)
    return have.kind not in "bOSU" and np.can_cast(have, want, "same_kind")


def _is_plain(value: object, array: Array) -> bool:
    """Python's own integers: they have no width."""
    return isinstance(value, int | list | tuple) and array.dtype == np.int_


def _check_range(tensor: Tensor, array: Array, name: str) -> None:
    if not array.size or not tensor.dtype.is_integer:
        return
    low, high = tensor.dtype.bounds
    if int(array.min()) < low or int(array.max()) > high:
        raise InputError(
            f"{array.min()} to {array.max()} do not fit {tensor.dtype.numpy}",
            where=f"input '{name}'",
            fix=f"its values must be {low} to {high}",
        )


def is_quantized(tensor: Tensor) -> bool:
    """Integers that stand for reals."""
    return tensor.dtype.is_integer and tensor.quant is not None and tensor.quant.scale.size > 0


def type_hint(tensor: Tensor, array: Array, tensor_text: str = "tensor") -> str:
    """What to do with an array that is not of the tensor's type."""
    quant, wanted = tensor.quant, tensor.dtype.numpy
    cast = f"x.astype(np.{wanted})"
    if tensor.dtype is DType.STRING:
        return "give an array of str or bytes"
    if array.dtype.kind in "OSU":
        return f"give an array of numbers, for example np.zeros({tensor.shape}, np.{wanted})"
    if is_quantized(tensor) and quant is not None and array.dtype.kind in "fiu":
        make = f"sanderling.quantize_array(x, {tensor_text})"
        if quant.scale.size == 1:
            zero = int(quant.zero_point[0])
            sign = "-" if zero < 0 else "+"
            make += f", that is round(x / {quant.scale[0]:g}) {sign} {abs(zero)}"
        return (
            f"quantise it first: {make}"
            if array.dtype.kind == "f"
            else (f"quantise the reals that it stands for: {make}; or, if it holds codes, {cast}")
        )
    if array.dtype.kind in "iu" and tensor.dtype.is_float:
        return f"convert it, and scale it as the model expects: {cast}, pixels often / 255"
    return f"convert it: {cast}"


def as_bytes(array: Array) -> Array:
    """Strings as TFLite holds them: bytes objects."""
    made = np.empty(array.shape, np.object_)
    # One of NumPy's byte strings is as long as its type says; among many, NULs at the end are
    # padding.
    whole = array.ndim == 0 and array.dtype.kind == "S"
    made.reshape(-1)[:] = [array.tobytes()] if whole else [_text(s) for s in array.flat]
    return made


def _text(value: object) -> bytes:
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else bytes(value)
    raise InputError(f"{value!r} is not a string", fix="give an array of str or bytes")


def check_shape(tensor: Tensor, shape: Shape, name: str) -> None:
    """Open dimensions take any size; the others may be resized too, as TFLite allows, but not the
    number of dimensions of a tensor whose rank is known."""
    if len(shape) != len(tensor.shape) and tensor.shape:
        raise InputError(
            f"an array of shape {list(shape)}, the model takes {tensor.type_text}",
            where=f"input '{name}'",
            fix=f"reshape it to {len(tensor.shape)} dimensions",
        )
