"""Encodings that make floating-point tensors smaller for the wire, and their decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.tensor_pb2 import (
    ENCODING_KIND_NARROWED,
    ENCODING_KIND_PACKED,
    ENCODING_KIND_QUANTIZED,
    ENCODING_KIND_SELECTED,
    EncodingKind,
    TensorSpec,
)
from stratagem_proto.wire.tensors import allocate, decode_dtype, nbytes_of, spec_of

NARROW_DTYPES = (torch.bfloat16, torch.float16)
"""The dtypes to which `narrow` rounds."""

_LEVELS = 127
_PACKED_LEVELS = 7


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor.

    Attributes:
        kind: The kind of encoding.
        decoded: The description of the decoded tensor.
        tensor: The encoded elements.
        companion: The second tensor that some kinds need; see `Encoding` in tensor.proto.
    """

    kind: EncodingKind
    decoded: TensorSpec
    tensor: torch.Tensor
    companion: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that are sent."""
        companion = self.companion
        return self.tensor.nbytes + (0 if companion is None else companion.nbytes)


def narrow(value: torch.Tensor, dtype: torch.dtype) -> Encoded:
    """Round elements to a narrower dtype.

    Finite elements stay finite: those beyond its range become its largest number.

    Args:
        value: A floating-point tensor of any shape.
        dtype: `torch.float16` or `torch.bfloat16`.
    """
    narrowed = value.to(dtype)
    if narrowed.isinf().any():
        largest = torch.finfo(dtype).max
        bounded = value.clamp(-largest, largest)
        narrowed = torch.where(value.isinf(), value, bounded).to(dtype)
    return Encoded(ENCODING_KIND_NARROWED, spec_of(value), narrowed)


def can_narrow(wider: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether `narrow` can round elements of the dtype `wider` to a narrower one."""
    is_wider = wider.is_floating_point and wider.itemsize > dtype.itemsize
    return is_wider and dtype in NARROW_DTYPES


def quantize(value: torch.Tensor, by_row: bool) -> Encoded:
    """Round elements to 255 levels between plus and minus the largest magnitude.

    Args:
        value: A floating-point tensor of any shape, with finite elements.
        by_row: Whether each row has levels of its own, if the tensor has two or more dimensions.
    """
    levels, scales = _rounded(value, by_row, _LEVELS)
    return Encoded(ENCODING_KIND_QUANTIZED, spec_of(value), levels, scales)


def pack(value: torch.Tensor, by_row: bool) -> Encoded:
    """As `quantize` to 15 levels, two of which are a byte."""
    levels, scales = _rounded(value, by_row, _PACKED_LEVELS)
    flat = torch.zeros(levels.numel() + levels.numel() % 2, dtype=torch.uint8)
    flat[: levels.numel()] = levels.reshape(-1).view(torch.uint8) & 0xF
    return Encoded(ENCODING_KIND_PACKED, spec_of(value), flat[::2] | flat[1::2] << 4, scales)


def _rounded(value: torch.Tensor, by_row: bool, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return levels from -most to `most`, of int8, and what they are to be multiplied by."""
    if by_row and value.dim() > 1:
        largest = value.abs().flatten(1)
        # A tensor without elements has no largest one.
        peak = largest.amax(1) if largest.shape[1] else largest.sum(1)
    else:
        peak = value.abs().amax() if value.numel() else value.new_zeros(())
    scales = peak / most
    # At the end of the dtype's range, so many times the rounded quotient is infinite.
    lower = torch.nextafter(scales, torch.zeros_like(scales))
    scales = torch.where((scales * most).isinf(), lower, scales)
    spread = _spread(scales, value.dim())
    levels = torch.where(spread > 0, value / spread, 0).round()
    return levels.clamp(-most, most).to(torch.int8), scales


def select(value: torch.Tensor, count: int) -> Encoded:
    """Keep the elements of the largest magnitude.

    Args:
        value: A floating-point tensor of any shape, without NaN.
        count: The number of elements to keep, at most that of all elements.
    """
    flat = value.reshape(-1)
    places = flat.abs().topk(count, sorted=False).indices.sort().values
    index = torch.int32 if len(flat) <= torch.iinfo(torch.int32).max else torch.int64
    kept = flat.index_select(0, places)
    return Encoded(ENCODING_KIND_SELECTED, spec_of(value), kept, places.to(index))


def decode(encoded: Encoded) -> torch.Tensor:
    """Return the tensor that was encoded, with the precision of its encoding.

    This takes memory for one tensor of the decoded size.

    Raises:
        InvalidArgumentError: The tensors do not fit the kind of encoding.
    """
    nbytes_of(encoded.decoded)
    dtype = decode_dtype(encoded.decoded.dtype)
    _require(dtype.is_floating_point, f"it would decode to {dtype}; only floats can")
    match encoded.kind:
        case EncodingKind.ENCODING_KIND_NARROWED:
            return _widened(encoded, dtype)
        case EncodingKind.ENCODING_KIND_QUANTIZED:
            return _scaled(encoded, dtype)
        case EncodingKind.ENCODING_KIND_PACKED:
            return _unpacked(encoded, dtype)
        case EncodingKind.ENCODING_KIND_SELECTED:
            return _scattered(encoded, dtype)
    raise InvalidArgumentError(f"there is no encoding number {encoded.kind}")


def _widened(encoded: Encoded, dtype: torch.dtype) -> torch.Tensor:
    tensor = encoded.tensor
    _require(tensor.dtype in NARROW_DTYPES, f"{tensor.dtype} is no narrow floating type")
    _require_shape(encoded)
    return tensor.to(dtype)


def _scaled(encoded: Encoded, dtype: torch.dtype) -> torch.Tensor:
    tensor = encoded.tensor
    _require(tensor.dtype == torch.int8, f"levels are torch.int8, not {tensor.dtype}")
    _require_shape(encoded)
    return _times_scales(encoded, tensor.to(dtype), _LEVELS)


def _unpacked(encoded: Encoded, dtype: torch.dtype) -> torch.Tensor:
    tensor = encoded.tensor
    _require(tensor.dtype == torch.uint8, f"packed levels are torch.uint8, not {tensor.dtype}")
    shape = torch.Size(encoded.decoded.shape)
    half = -(-shape.numel() // 2)
    _require(tensor.shape == (half,), f"{list(tensor.shape)} bytes stand for {list(shape)}")
    halves = torch.stack([tensor << 4, tensor & 0xF0], 1).view(torch.int8) >> 4
    levels = halves.reshape(-1)
    _require(not shape.numel() % 2 or int(levels[-1]) == 0, "the half behind the last one is not 0")
    _require(not bool((levels < -_PACKED_LEVELS).any()), "a packed level is below -7")
    found = levels[: shape.numel()].to(dtype).reshape(shape)
    return _times_scales(encoded, found, _PACKED_LEVELS)


def _times_scales(encoded: Encoded, levels: torch.Tensor, most: int) -> torch.Tensor:
    scales, dtype = _companion(encoded), levels.dtype
    _require(scales.dtype == dtype, f"the scales are {scales.dtype}, not {dtype}")
    fits = scales.dim() == 0 or scales.shape == levels.shape[:1]
    _require(fits, f"{list(scales.shape)} scales for shape {list(levels.shape)}")
    usable = (scales >= 0) & (scales * most).isfinite()
    _require(bool(usable.all()), "a scale is negative, too large or not a number")
    return levels.mul_(_spread(scales, levels.dim()))


def _scattered(encoded: Encoded, dtype: torch.dtype) -> torch.Tensor:
    tensor, places = encoded.tensor, _companion(encoded)
    _require(tensor.dtype == dtype, f"the elements are {tensor.dtype}, not {dtype}")
    integers = places.dtype in (torch.int32, torch.int64)
    _require(integers, f"places are integers, not {places.dtype}")
    vectors = tensor.dim() == 1 and places.shape == tensor.shape
    _require(vectors, "elements and places are not vectors of one length")
    _require(bool((places[1:] > places[:-1]).all()), "the places do not ascend")
    size = torch.Size(encoded.decoded.shape).numel()
    inside = not len(places) or (int(places[0]) >= 0 and int(places[-1]) < size)
    _require(inside, f"a place is not within the {size} elements")
    whole = allocate(encoded.decoded).to(tensor.device).zero_()
    whole.view(-1).index_copy_(0, places.to(torch.int64), tensor)
    return whole


def _spread(scales: torch.Tensor, dim: int) -> torch.Tensor:
    """Return scales in a shape that multiplies the rows of a tensor."""
    return scales.reshape(-1, *[1] * (dim - 1)) if scales.dim() else scales


def _companion(encoded: Encoded) -> torch.Tensor:
    if encoded.companion is None:
        raise InvalidArgumentError("it comes without its scales or places")
    return encoded.companion


def _require_shape(encoded: Encoded) -> None:
    shape, decoded = list(encoded.tensor.shape), list(encoded.decoded.shape)
    _require(shape == decoded, f"elements of shape {shape} stand for {decoded}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvalidArgumentError(otherwise)
