"""What the pages of a Parquet file unpack to by their own headers, since the metadata at its end may say anything."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTHS = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
"""Bytes that a value of a physical type takes in memory at least; 8 for other types without a length of their own."""
UNPACKED, PACKED, VALUES = 2, 3, 1
"""Fields of a page's header: its bytes unpacked and packed; and of its inner header, the number of its values."""
INNER = (5, 7, 8)
"""Fields of a page's header that are inner headers: of data, of a dictionary, and of data in the second version."""
STOP, TRUE, FALSE, BYTE, INTEGERS, DOUBLE, BINARY, STRUCT = 0, 1, 2, 3, (4, 5, 6), 7, 8, 12
"""Types of Thrift's compact protocol, without collections, which no header of a page has."""


def width_of(schema: pq.ParquetSchema, column: int) -> float:
    """Bytes that a value of a column takes in memory at least."""
    field = schema.column(column)
    return field.length if field.physical_type == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(field.physical_type, 8)


def claimed_bytes(data: memoryview, chunk: pq.ColumnChunkMetaData, width: float) -> int:
    """Bytes that the pages of a column's chunk claim to unpack to. Raises ValueError for headers that cannot be."""
    place = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        place = min(place, chunk.dictionary_page_offset)
    end, claimed = place + chunk.total_compressed_size, 0.0
    while place < end:
        header, place = _read_struct(data, place)
        if min(header.get(UNPACKED, -1), header.get(PACKED, -1)) < 0:
            raise ValueError("a page does not say how long it is")
        claimed += header[UNPACKED] + width * sum(header.get(field, {}).get(VALUES, 0) for field in INNER)
        place += header[PACKED]
    return int(claimed)


def dictionary_bytes(column: pa.Array) -> int:
    """Bytes of an array when each of its values stands by itself, where texts are dictionaries that hold each once."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _spelt_out(column)
    if pa.types.is_struct(kind):
        return sum(map(dictionary_bytes, column.flatten()))
    if pa.types.is_nested(kind):
        return column.nbytes + dictionary_bytes(column.flatten())
    return column.nbytes


def _spelt_out(column: pa.DictionaryArray) -> int:
    texts = column.dictionary
    if not (len(texts) and len(column)):
        return 0
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    offsets = np.frombuffer(texts.buffers()[1], np.int64 if large else np.int32)
    lengths = np.diff(offsets[texts.offset : texts.offset + len(texts) + 1]).astype(np.int64)
    rows = column.indices.to_numpy(zero_copy_only=False)
    if column.null_count:  # which makes floats of them
        rows = rows[~np.isnan(rows)].astype(np.int64)
    return int(lengths[rows].sum()) + 4 * len(column)


def _read_struct(data: memoryview, place: int) -> tuple[dict[int, Any], int]:
    """The whole numbers and structs of a struct by their fields, and where it ends."""
    found: dict[int, Any] = {}
    field = 0
    while (byte := data[place]) != STOP:
        place += 1
        kind = byte & 15
        if byte >> 4:
            field += byte >> 4
        else:
            field, place = _read_integer(data, place)
        if kind == STRUCT:
            found[field], place = _read_struct(data, place)
        elif kind in INTEGERS:
            found[field], place = _read_integer(data, place)
        elif kind == BINARY:
            length, place = _read_varint(data, place)
            place += length
        elif kind in (BYTE, DOUBLE):
            place += 8 if kind == DOUBLE else 1
        elif kind not in (TRUE, FALSE):
            raise ValueError(f"a page's header has a field of type {kind}")
    return found, place + 1


def _read_integer(data: memoryview, place: int) -> tuple[int, int]:
    value, place = _read_varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("a page's header has a number that is too long")
