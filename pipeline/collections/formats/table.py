"""Tables with named columns (CSV, TSV, JSON, JSONL or Parquet), and Parquet files that contain the photos.

A row is a sentence or an image. collection.columns renames columns. The default names are `file` (relative to the
images' folder), `sentence` (a text or a list of texts), and optionally `split`, `title`, `tags` and `description`. All
other columns are the user's own. A table that collection.files names under the key of a split is read in addition, and
its images belong to that split. `find_columns` finds the columns in a table in which they have other names.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

import pyarrow as pa

from pipeline.collections.files import CollectionFolder, is_image
from pipeline.collections.formats import lists, rows
from pipeline.collections.formats.folder import FILE_COLUMNS, usual_names
from pipeline.collections.records import DIVIDED, ColumnsRecord, ImageRecord, Options, Record, Reject, SentenceRecord
from pipeline.config.section import SPLITS
from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import relative_name, without_zeros
from pipeline.foreign.parquet import photograph_column

FURTHER_SPLITS = tuple(split for split in SPLITS if split != "train")
"""Splits for which collection.files can name a further table."""
TABLE = {"table": ("*.csv", "*.tsv", "*.jsonl", "*.parquet"), **dict.fromkeys(FURTHER_SPLITS, ()), "images": (".",)}
METADATA = "metadata"
"""The name, without its suffix, of tables in the Hugging Face hub whose names of photos are relative to the folder of
the table."""
SHARDS = "**/*.parquet"
COLUMNS = ("file", "sentence", "split", *lists.DOCUMENT)
SURROGATE = re.compile("[\udc80-\udcff]")
"""A character in place of a byte that is not UTF-8."""
AFTER_SPLIT = re.compile(r"[-_.].*", re.DOTALL)
"""The part after the split in the name of a shard: `train-00000-of-00002.parquet`."""
USUAL_COLUMNS = {
    "file": FILE_COLUMNS,
    "sentence": ("sentence", "caption", "sentences", "captions", "text", "alt", "alt_text")
    + ("comment", "raw", "raw_caption", "sentence_text", "caption_text"),
    "split": ("split",),
    **{name: (name,) for name in lists.DOCUMENT},
}
"""The usual names of each column of a table, in lower case. The first is jointspace's name."""
SUBSTITUTE_SENTENCES = ("description", "title")
"""Columns that are read as sentences if a table has no column of sentences. The first that exists is used."""
MAX_SAMPLED_VALUES = 20
"""Largest number of values of a column that are read to find its use."""
MIN_CAPTION_WORDS = 3
"""Smallest average number of words of the texts in a column at which the column may have captions."""
MIN_TITLE_WORDS = 1.5
"""Smallest average number of words of the titles in a column at which the titles may serve as captions. File names and
numbers have one word."""
SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""A character of a script without spaces between words. A word has about two such characters."""


def read_table(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of the tables of collection.files.table, and then of the further table of each split, in the
    order of their rows. An image takes its split, weak text and own columns from its first row. Raises UsageError if
    there is no table, or if collection.files or collection.columns has an unknown key."""
    folder = CollectionFolder(root, options)
    where = folder.locate(TABLE)
    first = folder.require(where["table"], "table", TABLE["table"])
    prefix = folder.image_prefix(where["images"])
    for path in folder.tables(first):
        yield from _read_rows(folder, path, prefix, options.default_split, options)
    for split in FURTHER_SPLITS:
        if further := where[split]:
            yield from _read_rows(folder, further, prefix, split, options)


def _read_rows(
    folder: CollectionFolder, path: Path, prefix: str, default_split: str, options: Options
) -> Iterator[Record]:
    names = _column_names(options, COLUMNS)
    if rows.is_text(path):
        names = {column: name.strip() for column, name in names.items()}
    needed = {names[column] for column in (*options.columns, "file")}
    file = folder.label(path)
    below = PurePosixPath(file if path.stem.lower() == METADATA else "").parent
    if below.is_relative_to(prefix):
        below = below.relative_to(prefix)
    # Names in a table outside the root are relative to the root, and not to the folder of the table.
    parents = () if ".." in below.parts else below.parts
    last = None
    for row, values, fault in rows.read_rows(folder, path, tuple(names.values()), needed, options.own_columns):
        name = values.get(names["file"])
        if not fault and (name is None or not str(name).strip()):
            options.tally.notes[f"rows of {file} name no photo and are left out"] += 1
            continue
        name = str(name) if type(name) is int else name
        if not isinstance(name, str):
            yield Reject(file, row, "sentences", fault or f"no file name in column {names['file']}: write one")
            continue
        name = posixpath.join(*parents, name)
        if name != last:
            split = values.get(names["split"]) or default_split
            yield ImageRecord(name, posixpath.join(prefix, name), lists.split_name(str(split)), file, row, implied=True)
            yield from lists.document(name, values, map(names.get, lists.DOCUMENT), file, row, implied=True)
            yield ColumnsRecord(name, rows.other_values(values, path, names.values()), file, row)
        for text in lists.sentences(values.get(names["sentence"]), options.tally):
            if rows.is_text(path) and not text.isascii() and SURROGATE.search(text):
                yield Reject(file, row, "sentences", lists.not_utf8(text))
            else:
                yield SentenceRecord(name, None, text, file, row)
        last = name


def read_parquet(root: Path, options: Options) -> Iterator[Record]:
    """Yield the records of Parquet files that contain photos, as the Hugging Face hub has them. The photos stay in
    these files. A file that cannot be read is rejected as a whole.

    A row is an image, and a column contains the photo as `{bytes, path}` or as bytes. collection.files may name a
    pattern of shards for each split, or for `divided`, which stands for photos without a split. Shards of a pattern are
    in the order of their names. If collection.files is empty, all shards are read, as in the hub. Each shard then has
    the split at the beginning of its name, or else the split of the nearest folder above it that is named after a
    split, or else the default split. If these splits are only train, only dev or only test, all shards have the default
    split. Raises UsageError if no file matches a pattern, or if collection.files or collection.columns has an unknown
    key.
    """
    folder = CollectionFolder(root, options)
    folder.check_keys((*SPLITS, DIVIDED))
    names = _column_names(options, COLUMNS[1:])
    splits: dict[Path, str] = {}
    for split, pattern in (options.files or {"": SHARDS}).items():
        shards = folder.glob(pattern)
        if not shards:
            raise folder.lacks(f"Parquet files {pattern}", f"correct collection.files.{split or DIVIDED} or data_root")
        for path in shards:
            parts = (AFTER_SPLIT.sub("", path.name), *reversed(PurePosixPath(folder.label(path)).parent.parts))
            named = (part for part in map(lists.split_name, parts) if part in SPLITS)
            splits[path] = split or next(named, options.default_split)
    if not options.files and len(named := {*splits.values()}) == 1 and named < {"train", "dev", "test"}:
        splits = dict.fromkeys(splits, options.default_split)
    for path, split in splits.items():
        try:
            yield from _read_shard(folder, path, split, names, options)
        except InputError as error:
            yield Reject(folder.label(path), None, "images", str(error).removeprefix(f"{path} "))


def _column_names(options: Options, ours: tuple[str, ...]) -> dict[str, str]:
    if unknown := set(options.columns) - set(ours):
        raise UsageError(f"collection.columns has the unknown key {min(unknown)}. Use the keys {', '.join(ours)}.")
    # The column `title` is not the title if collection.columns uses it for something else, such as the sentence.
    renamed = {name for theirs in options.columns.values() for name in theirs.split(rows.EITHER)}
    names = {column: column for column in ours if column not in lists.DOCUMENT or column not in renamed}
    return {**names, **options.columns}


def _read_shard(
    folder: CollectionFolder, path: Path, split: str, names: dict[str, str], options: Options
) -> Iterator[Record]:
    fields = rows.schema(folder, path)
    shard = folder.label(path)
    if (column := photograph_column(fields)) is None:
        raise InputError(
            f"{path} has no column of photos. Write the photos into a column of bytes, or of structs with the fields"
            " bytes and path."
        )
    leaf = (column, "bytes") if pa.types.is_struct(fields.field(column).type) else (column,)
    without = rows.rows_without(folder, path, leaf)
    options.tally.notes["rows of Parquet files have no photo and are left out"] += len(without)
    needed = [names[ours] for ours in options.columns]
    columns = (f"{column}.path", *names.values())
    for row, values, _ in rows.read_rows(folder, path, columns, needed, options.own_columns):
        if row in without:
            continue
        photo = values.get(column)
        name = photo.get("path") if isinstance(photo, dict) else None
        member = posixpath.basename(relative_name(name or "")) or f"row {row}"
        key = f"{shard}/{row}"
        asked = lists.split_name(str(values.get(names["split"]) or split))
        yield ImageRecord(key, shard, asked, shard, row, member, row - 1)
        yield from lists.document(key, values, map(names.get, lists.DOCUMENT), shard, row)
        yield ColumnsRecord(key, rows.other_values(values, path, (column, *names.values())), shard, row)
        for text in lists.sentences(values.get(names["sentence"]), options.tally):
            yield SentenceRecord(key, None, text, shard, row)


def find_columns(folder: CollectionFolder, path: Path) -> dict[str, str]:
    """Return the columns of a table that are used, as jointspace's name of the column -> name in the table.

    A column is found by a usual name. Names may be in any language, so a column without a usual name is found by its
    values, which are files of photos, texts, or names of splits. Raises InputError if the table cannot be read or has
    no header. Also raises InputError if no column has a usual name for file names, and none or several have values that
    are file names.
    """
    columns = usual_columns(folder, path)
    texts = sample_texts(folder, path)
    stems = set() if "file" in columns else folder.stems.difference(columns.values())
    if name := next((name for name in texts if is_image(name) or without_zeros(name) in stems), None):
        raise InputError(
            f"{path} has no header, since its first line is about the photo {name}. Add a header, such as file,caption."
        )
    if "file" not in columns:
        columns = {"file": _file_column(path, texts, stems), **columns}
    if "split" not in columns and (name := _split_column(folder, path, texts.keys() - columns.values())):
        columns = {**columns, "split": name}
    return with_text_columns(columns, texts)


def _split_column(folder: CollectionFolder, path: Path, names: Collection[str]) -> str | None:
    """Return the only one of the columns `names` whose values are all names of splits, and name at least two splits.

    Empty values do not count. Return None if there is no such column, or if there are several.
    """
    found: dict[str, set[str]] = {name: set() for name in names}
    for row in rows.read_rows(folder, path, (), (), None):
        for name, splits in [*found.items()]:
            if (value := row.values.get(name)) not in (None, ""):
                splits.add(lists.split_name(str(value)))
                if not splits.issubset(SPLITS):
                    del found[name]
        if not found:
            return None
    divided = [name for name, splits in found.items() if len(splits) > 1]
    return divided[0] if len(divided) == 1 else None


def sample_texts(folder: CollectionFolder, path: Path) -> dict[str, list[str]]:
    """Return at most MAX_SAMPLED_VALUES values of each column of a table, as texts, by the name of the column.

    The values are from the first rows of the table. Only texts and whole numbers that are not empty count, so a column
    may have no values.
    """
    texts: dict[str, list[str]] = {name: [] for name in rows.column_names(folder, path)}
    for row in islice(rows.read_rows(folder, path, (), (), None), rows.MAX_SAMPLED_ROWS):
        for name, value in row.values.items():
            sample = texts.setdefault(name, [])
            if len(sample) < MAX_SAMPLED_VALUES and type(value) in (str, int) and str(value).strip():
                sample.append(str(value))
    return texts


def _file_column(path: Path, texts: dict[str, list[str]], stems: set[str]) -> str:
    """Return the column in which most values are file names of photos, or else are among `stems`, the names of the
    photos without suffix and leading zeros.

    `texts` has the first values of each column. Raises InputError, with a remedy, if there is no such column or if
    there are several.
    """

    def mostly(fits: Callable[[str], bool]) -> list[str]:
        return [name for name, values in texts.items() if 2 * sum(map(fits, values)) > len(values)]

    if not any(texts.values()):
        raise InputError(f"{path} has no rows with values. Write at least one row below the header.")
    links = mostly(lambda value: "://" in value)
    named = [name for name in mostly(is_image) if name not in links]
    candidates = named or mostly(lambda value: without_zeros(value) in stems)
    if len(candidates) == 1:
        return candidates[0]
    usual = ", ".join(USUAL_COLUMNS["file"])
    fault = f"has no column with a usual name for file names ({usual}). Rename the column with the file names to file."
    if candidates:
        fault = f"has file names in the columns {' and '.join(candidates)}. Rename the right column to file."
    elif links:
        link = max(links, key=lambda name: sum(map(is_image, texts[name])))
        fault = (
            f"has links in the column {link}, but no file names. Download the photos first, such as with img2dataset."
        )
    raise InputError(f"{path} {fault}")


def with_text_columns(columns: dict[str, str], texts: dict[str, list[str]]) -> dict[str, str]:
    """Return the `columns` that are used, by jointspace's names, with a column of captions if one is found.

    `texts` has the first values of each column. If no column is the `sentence`, the first column with `caption` in its
    name and with sentences as values becomes the `sentence`, and nothing else changes. In all other cases, a `title` of
    mostly one word is dropped. If no `sentence`, `title` or `description` is left, the unused column with the longest
    texts becomes the `description`, if these texts may be captions. If the name of this column differs from the names
    of other columns of such texts only in a number, as in text1 and text2, all of these columns together become the
    `description`.
    """
    words = {name: sum(map(_count_words, values)) / len(values) for name, values in texts.items() if values}
    called = [name for name in words if "caption" in name.lower() and words[name] >= MIN_CAPTION_WORDS]
    if called and "sentence" not in columns:
        return {**columns, "sentence": called[0]}
    if words.get(columns.get("title", ""), MIN_CAPTION_WORDS) < MIN_TITLE_WORDS:
        columns = {ours: theirs for ours, theirs in columns.items() if ours != "title"}
    if columns.keys().isdisjoint(("sentence", *SUBSTITUTE_SENTENCES)):
        longest = max((name for name in words if name not in columns.values()), key=words.__getitem__, default="")
        if longest and words[longest] >= MIN_CAPTION_WORDS:
            same = [name for name in texts if rows.stem(name) == rows.stem(longest)]
            are_texts = len(same) > 1 and all(words.get(name, 0) >= MIN_CAPTION_WORDS for name in same)
            columns = {**columns, "description": f"{rows.stem(longest)}#" if are_texts else longest}
    return columns


def _count_words(text: str) -> int:
    """Estimate the number of words in a text: parts between spaces, and one word for every two characters of a script
    without spaces between words, such as Chinese."""
    return len(text.split()) + len(SPACELESS.findall(text)) // 2


def usual_columns(folder: CollectionFolder, path: Path) -> dict[str, str]:
    """Return the columns of a table that have usual names, as jointspace's name of the column -> name in the table.

    Several columns of sentences with the same stem, such as caption1 and caption2, are one column `caption#`.
    """
    columns = rows.column_names(folder, path)
    present = usual_names(columns)
    stems = usual_names(list(map(rows.stem, columns)))
    for name in USUAL_COLUMNS["sentence"]:
        if name in stems and [column for column in columns if rows.stem(column) == stems[name]] != [stems[name]]:
            present[name] = f"{stems[name]}#"
    usual = {
        ours: next((present[name] for name in names if name in present), None) for ours, names in USUAL_COLUMNS.items()
    }
    return {ours: theirs for ours, theirs in usual.items() if theirs is not None}


def with_sentences(columns: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Use one of SUBSTITUTE_SENTENCES as the column of sentences if a table has none.

    Return the columns by jointspace's names, and a note for the user if such a column is used. This column is then
    removed from the mapping `columns` in place.
    """
    if "sentence" in columns or (ours := next(filter(columns.get, SUBSTITUTE_SENTENCES), None)) is None:
        return columns, ()
    theirs = columns.pop(ours)
    note = f"no column of captions: {theirs} is used as the caption (collection.columns.sentence names another)"
    return {**columns, "sentence": theirs}, (note,)


def renamed(columns: dict[str, str]) -> dict[str, str]:
    """Return the columns whose names in the table differ from jointspace's names, by jointspace's names."""
    return {ours: theirs for ours, theirs in columns.items() if theirs != ours}


def tables_by_split(folder: CollectionFolder, names: list[str]) -> dict[str, str]:
    """Return the keys of collection.files for one table per split, or {} if there is no table of train with sentences.

    A table of another split is left out if it lacks a column that is used in the table of train.
    """
    splits = lists.by_split(names)
    files: dict[str, str] = {}
    with suppress(InputError):
        if train := splits.pop("train", None):
            columns, _ = with_sentences(find_columns(folder, folder.root / train))
            if "sentence" in columns:
                files["table"] = train
                used = {columns["file"], columns["sentence"], *renamed(columns).values()}
                for split, name in splits.items():
                    present = rows.column_names(folder, folder.root / name)
                    if used.issubset([*present, *(f"{rows.stem(column)}#" for column in present)]):
                        files[split] = name
    return files
