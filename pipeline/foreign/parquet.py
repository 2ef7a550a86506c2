"""Types and sizes of the columns of untrusted Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTHS = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
"""Bytes that a value of a physical type takes in memory at least; 8 for other types without a length of their own."""


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that the values of a column are read as; None if Python or JSON cannot hold them."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_decimal(kind) or types.is_float16(kind):
        return pa.float64()
    if types.is_date(kind):
        return pa.date32()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if types.is_nested(kind) and not types.is_map(kind) and not types.is_union(kind):
        inner = [kind.field(number).type for number in range(kind.num_fields)]
        return kind if all(plain_type(one) == one and not types.is_temporal(one) for one in inner) else None
    plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind)
    return kind if plain else None


def unpacked_bytes(about: pq.FileMetaData) -> int:
    """Bytes to which the columns of a Parquet file unpack at least, according to its metadata."""
    columns = [
        (group.column(number), width_of(about.schema, number))
        for group in map(about.row_group, range(about.num_row_groups))
        for number in range(group.num_columns)
    ]
    values = sum(int(column.num_values * width) for column, width in columns)
    return max(values, sum(column.total_uncompressed_size for column, _ in columns))


def width_of(schema: pq.ParquetSchema, column: int) -> float:
    """Bytes that a value of a column takes in memory at least."""
    field = schema.column(column)
    return field.length if field.physical_type == "FIXED_LEN_BYTE_ARRAY" else WIDTHS.get(field.physical_type, 8)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values: of a tensor that of its lists, of a dictionary (a category) of its entries."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return kind.value_type if pa.types.is_dictionary(kind) else kind


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
