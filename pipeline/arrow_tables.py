"""Arrow tables one after the other, whatever their columns are."""

import pyarrow as pa


def append_rows(table: pa.Table, more: pa.Table) -> pa.Table:
    """Both tables one after the other: a column that one of them lacks is null there, and one of other types in the two
    is text, unless both hold numbers."""
    for name in set(table.column_names) & set(more.column_names):
        if not _agree(kinds := [one.schema.field(name).type for one in (table, more)]):
            kind = pa.float64() if all(map(_is_number, kinds)) else pa.string()
            table, more = (
                one.set_column(one.column_names.index(name), name, one[name].cast(kind, safe=False))
                for one in (table, more)
            )
    return pa.concat_tables([table, more], promote_options="default")


def with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema` alone, in their order and of their types; one that it lacks is null. Raises
    pa.ArrowInvalid for values that are not of their type."""
    columns = {one.name: pa.nulls(table.num_rows, one.type) for one in schema}
    columns |= {name: table[name].cast(schema.field(name).type) for name in table.column_names if name in columns}
    return pa.table(columns, schema=schema)


def _agree(kinds: list[pa.DataType]) -> bool:
    return kinds[0] == kinds[1] or pa.null() in kinds


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
