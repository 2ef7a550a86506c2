"""Searching the words of captions, file names and columns as text, next to the vectors of an index.

Inventory numbers and names have no meaning for an embedding. The words of every photo are therefore also stored in a
full-text index of SQLite (FTS5). A text is split as for the text encoders (pipeline.text.tokens), and also between
letters and digits, so that `VK 40/0003` and `VK_40_0003.jpg` have the same words. In scripts without spaces, each
character is a word. A photo matches a query if all words of the query, except stop words, are in its captions, file
names and columns. The words may be in different texts, but words that are written together in the query must be
neighbours in one text. Words that too many photos have (see MAX_MATCHES) are left to the vectors.

The full-text index is made from the tables of an index, and is stored in a folder that only this user can write. If no
such folder can be used, each process makes it in memory. The file is never in the index folder, because SQLite trusts
the files that it opens. The name of the file has a digest of the tables. After photos were added or removed, a new file
is therefore made, and the former file is deleted. Indexes with equal tables, such as the indexes of several models of a
run, share one file on the disk through hard links. The commands that write an index also make its full-text index. For
an index of another user, the first search makes it.
"""

import base64
import hashlib
import itertools
import logging
import math
import os
import re
import sqlite3
import tempfile
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, JointspaceError, UsageError
from pipeline.foreign.files import state_folder
from pipeline.storage.index_folder import COLUMNS
from pipeline.storage.index_shard import MODALITIES
from pipeline.storage.json_files import Json
from pipeline.storage.stored_index import StoredIndex, open_index
from pipeline.storage.tables import SHARD, RowTable
from pipeline.text.lemmas import STOP_WORDS
from pipeline.text.tokens import TermSettings, make_reader

VERSION = "4"
"""Version of the stored file. With a new version, every file is made again."""
NAME = "file name"
CAPTION = "caption"
BUILT_IN = frozenset((*COLUMNS["images"].names, "width", "height", SHARD))
"""Names of the columns of images that jointspace writes. Their values are not searched, except the file names in `path`
and `member`."""
MAX_COLUMNS = 500
"""Largest number of the user's columns that are searched. Further columns are ignored. SQLite has a limit of 2,000."""
MAX_VALUE_CHARACTERS = 10_000
"""Number of characters of a caption, a file name or a column value that are searched. The rest of a longer text is
ignored."""
MAX_KEY_CHARACTERS = 200
"""Number of characters of the longest column value or file name that can be found as equal to a query."""
MAX_IDENTIFIED = 20
"""Largest number of photos that may share an identifier, which is a column value or a file name that names a photo. A
value of more photos is a category, such as a place. If a query is equal to a category, the photos of the category
match, unless there are more than MAX_MATCHES of them. Unlike photos with the query as an identifier, they do not come
before all other results."""
MAX_QUERY_WORDS = 64
"""Largest number of words that a query may have to be searched as text. Stop words and repeated phrases do not count. A
query with more words is only compared by its vector."""
MAX_MATCHES = 1000
"""Largest number of photos that may match by their words, and also of photos that may match because a whole value
equals the query. If more photos have all words of a query, the words are not searched as text, because they tell photos
apart no better than the vectors do. For such a query, only photos with a value that equals the query match."""
MAX_MATCHING_SHARE = 0.1
"""Largest share of the photos of an index that may match by their words. This share limits the matches further than
MAX_MATCHES in an index of fewer than 10,000 photos. FEW_MATCHES photos may always match."""
FEW_MATCHES = 10
UNUSED_SECONDS = 90 * 86400
"""Number of seconds for which a full-text index is kept after it was last opened. `discard` deletes older files."""
STORED_NAME = re.compile(r"[0-9a-f]{64}-([0-9a-f]{64}\.sqlite|[a-z0-9_]{8})|\.[0-9a-f]{64}\.lock")
"""Pattern of the names of the stored full-text indexes, of the temporary files that become full-text indexes, and of
their lock files. `discard` deletes no other files."""
MIN_LOGGED_PHOTOS = 20_000
"""Smallest number of photos whose full-text index takes so long to make (about a second) that a message says so."""
KEY_MARK = "\xb6"
"""First character of a stored key. The key of a column value or file name (see `key_of`) is stored like a word after
the words of the value. No word contains this character, so a stored key is never equal to a word, and phrases do not
match across two values."""
MAX_STORED_KEY_CHARACTERS = 16
"""Number of characters of the longest key that is stored unchanged. A longer key is stored as a hash."""
MAX_ENDING_WORDS = 3
"""Largest number of words of a query that are tried as the ending of a file name. Letters and digits are separate
words: `.j2k` has three."""
ASCII_TOKEN = re.compile(r"[a-z]+|[0-9]+")
TOKEN = re.compile(r"\d+|[^\d']+")
LATIN_MARKS = re.compile("[\u0300-\u036f]")
log = logging.getLogger(__name__)
_read_words = make_reader(TermSettings(lemmatise=False, stop_words=(), max_ngram=1))


def tokenise(text: str) -> list[str]:
    """Split a text into lower-case words without accents.

    Letters and digits are separate words, and so is each character in scripts without spaces. Punctuation is left out.
    """
    if text.isascii():
        return ASCII_TOKEN.findall(text.lower())
    plain = unicodedata.normalize("NFC", LATIN_MARKS.sub("", unicodedata.normalize("NFKD", text)))
    return [token for run in _read_words(plain) for word in run.words for token in TOKEN.findall(word)]


def key_of(text: str) -> str:
    """Join the words of a text without spaces, so that different spellings of an identifier have the same key.

    Return an empty text if the text has no words or more than MAX_KEY_CHARACTERS characters.
    """
    return "".join(tokenise(text)) if len(text) <= MAX_KEY_CHARACTERS else ""


def _mark(key: str) -> str:
    """Return the word that is stored for a `key`: KEY_MARK, followed by the key or by the hash of a long key."""
    if len(key) > MAX_STORED_KEY_CHARACTERS:
        key = base64.b32encode(hashlib.blake2b(key.encode(), digest_size=5).digest()).decode().lower()
    return KEY_MARK + key


def names_of(path: str) -> tuple[str, str, str]:
    """Return the forms of a file name that a user may type: the whole path, the name without its folder, and the name
    without folder and ending."""
    return path, (name := os.path.basename(path)), os.path.splitext(name)[0]


def _keys_of_name(path: str) -> list[str]:
    """Return the keys to store for the file name `path`: the key of the name without folder and ending, followed by the
    key of the whole path if the path has a folder.

    `_stored` writes the first key directly after the words of the path, whose last words are the ending. A phrase in
    `TextQuery.stems`, which is an ending followed by this key, therefore finds the file name.
    """
    _, name, stem = names_of(path)
    return [key_of(stem), *([key_of(path)] if path != name else [])]


@dataclass(frozen=True)
class TextQuery:
    """The words of a query.

    `key` is the key of the whole query (see `key_of`), which finds photos with an equal column value or file name.
    `phrases` are the parts of the query between spaces. A photo that matches by its words has all phrases, with the
    words of a phrase as neighbours. `stems` find the query as a file name with its ending: each stem takes the last
    one, two or three words of the query as the ending, and has the words of this ending, followed by the stored key of
    the words before it.
    """

    key: str
    phrases: tuple[str, ...]
    stems: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "TextQuery | None":
        """Split a query at its spaces into phrases. Stop words are left out unless there are no other words.

        Return None if the query has no words, or if its phrases have more than MAX_QUERY_WORDS words.
        """
        phrases = list(dict.fromkeys(filter(None, (" ".join(tokenise(part)) for part in text.split()))))
        phrases = [phrase for phrase in phrases if phrase not in STOP_WORDS] or phrases
        is_short = 0 < sum(len(phrase.split()) for phrase in phrases) <= MAX_QUERY_WORDS
        words = tokenise(text) if is_short else []
        endings = range(1, min(MAX_ENDING_WORDS, len(words) - 1) + 1)
        stems = (" ".join((*words[-number:], _mark("".join(words[:-number])))) for number in endings)
        return cls(key_of(text), tuple(phrases), tuple(stems)) if is_short else None

    def fields_of(self, row: Mapping[str, Json]) -> tuple[str, ...]:
        """Return the names of the fields in which a photo that matches the query has words of the query.

        `row` has the columns of the photo. A field is the name of a column, or NAME for the file name. If some fields
        have the same key as the query, only these fields are returned. Otherwise all fields that have at least one
        phrase of the query are returned. CAPTION follows if a phrase is in none of these fields, because a caption must
        then have the phrase.
        """
        names = [str(row[name]) for name in ("path", "member") if row.get(name)]
        own = {name: [str(row[name])] for name in row if name not in BUILT_IN and type(row[name]) in (str, int)}
        forms = {NAME: [form for name in names for form in names_of(name)], **own}
        if same := [field for field in forms if self.key and self.key in map(key_of, forms[field])]:
            return tuple(same)
        words = {field: f" {_stored(values)} " for field, values in {NAME: names, **own}.items()}
        found = [field for field in words if any(f" {phrase} " in words[field] for phrase in self.phrases)]
        is_complete = all(any(f" {phrase} " in words[field] for field in found) for phrase in self.phrases)
        return tuple(found) if is_complete else (*found, CAPTION)


def _stored(values: Iterable[str], keys_of: Callable[[str], Iterable[str]] | None = None) -> str:
    """Return the words of some values, separated by spaces, as a text for FTS5.

    After the words of each value, the keys that `keys_of` returns for the value follow in their stored form (see
    `_mark`). Without `keys_of`, KEY_MARK alone separates two values.
    """
    texts = []
    for value in values:
        keys = dict.fromkeys(map(_mark, keys_of(value))) if keys_of else ()
        texts.append(" ".join((*tokenise(value[:MAX_VALUE_CHARACTERS]), *keys)))
    return (" " if keys_of else f" {KEY_MARK} ").join(texts)


class TextMatches(NamedTuple):
    """Photos that match a `query`.

    `exact` are the rows of the photos that have the query as an identifier. `ranks` maps the row of each match to its
    rank from 0. Photos with a column value or a file name that equals the query have the rank 0, even if so many photos
    share the value that it is not an identifier. The other matches follow by BM25. Equally good matches have equal
    ranks.
    """

    query: TextQuery
    exact: frozenset[int]
    ranks: dict[int, int]


class TextIndex:
    """The full-text index that belongs to an index of photos. The constructor opens the file of the full-text index,
    and makes the file if it is missing. If the file cannot be stored, the full-text index is made in memory.

    `hidden_columns` are the names of the columns of photos that are not searched. The constructor raises UsageError if
    SQLite cannot make a full-text index.
    """

    def __init__(self, index: StoredIndex, hidden_columns: Collection[str] = ()) -> None:
        names = (NAME, CAPTION, *_own_columns(index))
        self._visible = " ".join(f"c{number}" for number, name in enumerate(names) if name not in hidden_columns)
        count = index.packed_table("images").num_rows
        self._most = min(MAX_MATCHES, max(FEW_MATCHES, int(MAX_MATCHING_SHARE * count)))
        self._database = _open(index)

    def search(self, query: TextQuery, allowed: np.ndarray | None = None) -> TextMatches:
        """Find the photos that match a query.

        `allowed` (n,) bool says which of the n rows of the table of images may be found. The limits on the number of
        matches, such as MAX_MATCHES, count all photos, whether allowed or not. Raises IntegrityError if the stored file
        is damaged.
        """
        try:
            keys = " OR ".join((f'"{_mark(query.key)}"', *(f'c0 : "{stem}"' for stem in query.stems)))
            equal = self._find(keys, MAX_MATCHES) if query.key else {}
            scores = self._find(" AND ".join(f'"{phrase}"' for phrase in query.phrases), self._most)
        except sqlite3.Error as error:
            raise IntegrityError(
                f"The stored words of an index are damaged ({error}). Delete the folder {state_folder('words')}, and"
                " search again."
            ) from error
        exact = equal if len(equal) <= MAX_IDENTIFIED else {}
        # A smaller score of SQLite means a better match. A photo with the query as a whole value is the best match,
        # even if so many photos share this value that it is a category.
        scores |= dict.fromkeys(equal, -math.inf)
        if allowed is not None:
            scores = {row: score for row, score in scores.items() if allowed[row]}
        ordered = np.sort(np.fromiter(scores.values(), float, len(scores)))
        ranks = {row: int(np.searchsorted(ordered, score)) for row, score in scores.items()}
        return TextMatches(query, frozenset(row for row in exact if row in ranks), ranks)

    def _find(self, words: str, most: int) -> dict[int, float]:
        """Return the photos that FTS5 finds for its expression `words` in the visible columns, as row -> score by BM25.

        A smaller score is better. The result is empty if more than `most` photos match.
        """
        query = "SELECT rowid, bm25(words) FROM words WHERE words MATCH ? LIMIT ?"
        found = self._database.execute(query, (f"{{{self._visible}}} : ({words})", most + 1)).fetchall()
        return {row: round(score, 9) for row, score in found} if len(found) <= most else {}


def _own_columns(index: StoredIndex) -> list[str]:
    """Return the names of the user's columns of texts or integers that are searched: the first MAX_COLUMNS of them in
    the order of the table."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    fields = index.packed_table("images").schema
    own = (field for field in fields if field.name not in BUILT_IN and any(kind(field.type) for kind in kinds))
    return [field.name for field in own][:MAX_COLUMNS]


def _open(index: StoredIndex) -> sqlite3.Connection:
    """Open the stored full-text index of an index, and make it if it does not exist.

    If the full-text index cannot be stored or opened, for example because no folder is safe to keep it in, it is made
    in memory. Raises UsageError if SQLite cannot make it in memory either.
    """
    with suppress(OSError, sqlite3.Error, JointspaceError):
        if (path := make_text_index(index)) is not None:
            os.utime(path)
            database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
            database.execute("SELECT count(*) FROM sqlite_schema")
            return database
    try:
        return _fill(sqlite3.connect(":memory:", check_same_thread=False), index)
    except sqlite3.Error as error:  # This happens, for example, if Python's SQLite was built without FTS5.
        raise UsageError(
            f"The words of queries cannot be searched as text, because SQLite cannot make a full-text index ({error})."
            " Search with --no-match-text, or with match_text=False in Python."
        ) from error


def make_text_index(index: StoredIndex) -> Path | None:
    """Make the full-text index of an index unless it exists, and return the path of its file.

    Older full-text indexes of the same index folder are deleted. If another process is making the file, the function
    waits for that process. Return None if no folder is safe to keep the file in. Raises OSError, sqlite3.Error or
    JointspaceError if the full-text index cannot be made.
    """
    if (folder := state_folder("words")) is None:
        return None
    tables = [shard.about(f"{modality}.parquet")["sha256"] for shard in index.shards for modality in MODALITIES]
    digest = hashlib.sha256(" ".join((VERSION, *tables)).encode()).hexdigest()
    prefix = hashlib.sha256(os.path.realpath(index.folder).encode()).hexdigest()
    path = folder / f"{prefix}-{digest}.sqlite"
    if path.exists():
        return path
    # The import is here, because most searches find the file of the full-text index and should start fast.
    from pipeline.storage.locks import hold

    with hold(folder / digest, wait=True):
        if not path.exists():
            discard(prefix)
            other = next(folder.glob(f"*-{digest}.sqlite"), None)
            with suppress(OSError):  # Some file systems have no hard links. Then the code below makes the file.
                if other is not None:
                    os.link(other, path)
                    return path
            with tempfile.NamedTemporaryFile(prefix=f"{prefix}-", dir=folder, delete=False) as file:
                database = _fill(sqlite3.connect(file.name), index)
                database.execute("VACUUM")  # Merging leaves free pages, which are up to half of the file.
                database.close()
            os.replace(file.name, path)
    return path


def prepare_text_index(folder: Path) -> None:
    """Make the full-text index of the index in `folder`, so that the first search does not wait for it.

    Any exception is only logged as a warning, because the index itself is complete, and the first search tries again.
    """
    try:
        make_text_index(open_index(folder))
    except Exception as error:
        log.warning(
            "The full-text index of the index in %s could not be made (%s). The first search tries to make the"
            " full-text index again, and therefore takes longer.",
            folder,
            error,
        )


def discard(prefix: str = "") -> None:
    """Delete this user's stored full-text indexes whose names begin with `prefix`, and all others that were not opened
    for UNUSED_SECONDS.

    `prefix` is the digest of the path of an index folder. If `prefix` is empty, the full-text indexes of all index
    folders are deleted. `jointspace remove` deletes all of them, so that no text of a removed photo stays. A file that
    cannot be deleted is left in place.
    """
    for path in folder.iterdir() if (folder := state_folder("words")) else ():
        with suppress(OSError):
            is_unused = time.time() - path.lstat().st_mtime > UNUSED_SECONDS
            if STORED_NAME.fullmatch(path.name) and (is_unused or path.name.startswith(prefix)):
                path.unlink()


def _fill(database: sqlite3.Connection, index: StoredIndex) -> sqlite3.Connection:
    """Write the words of all photos that were not removed into an empty database, and return this database."""
    own = _own_columns(index)
    if (count := index.packed_table("images").num_rows) >= MIN_LOGGED_PHOTOS:
        log.info("The full-text index of %d photos is being made, which takes about 5 s per 100,000 photos.", count)
    columns = [f"c{number}" for number in range(2 + len(own))]
    database.execute("PRAGMA journal_mode = OFF")
    database.execute(f"CREATE VIRTUAL TABLE words USING fts5({', '.join(columns)}, content = '', tokenize = 'ascii')")
    add = f"INSERT INTO words (rowid, {', '.join(columns)}) VALUES ({', '.join('?' * (len(columns) + 1))})"
    with database:
        database.executemany(add, _texts(index, own))
        database.execute("INSERT INTO words (words) VALUES ('optimize')")
    return database


def _texts(index: StoredIndex, own: Sequence[str]) -> Iterator[tuple[int | str, ...]]:
    """Yield the row number of each photo that was not removed, followed by the stored words of its file names, of its
    captions, and of each of its columns `own`."""
    groups = index.packed_table("images").groups(["path", "member", *own])
    records = (record for group in groups for record in group.to_pylist())
    for row, (record, captions) in enumerate(zip(records, _captions(index), strict=True)):
        if record["path"] is not None:  # The columns of removed photos are null.
            names = [record[name] for name in ("path", "member") if record[name] is not None]
            values = ([str(record[name])] if record[name] is not None else [] for name in own)
            stored = [_stored(value, lambda value: (key_of(value),)) for value in values]
            yield row, _stored(names, _keys_of_name), _stored(captions), *stored


def _captions(index: StoredIndex) -> Iterator[list[str]]:
    """Yield the captions of each photo, in the order of the table of images. The list of a photo may be empty.

    All captions are in memory at once only if one of the two tables is not sorted by `image_id`.
    """
    images, sentences = map(index.packed_table, MODALITIES)
    ids = (number for group in images.groups(["image_id"]) for number in group["image_id"].to_pylist())
    rows = (row for group in sentences.groups(["image_id", "text"]) for row in group.to_pylist())
    captions = (
        (owner, [row["text"] for row in own if row["text"] is not None])
        for owner, own in itertools.groupby(rows, itemgetter("image_id"))
    )
    if not (_is_sorted(images) and _is_sorted(sentences)):
        every: dict[int, list[str]] = {}
        for number, some in captions:
            every.setdefault(number, []).extend(some)
        yield from (every.get(number, []) for number in ids)
        return
    owner: float = -1
    texts: list[str] = []
    for number in ids:
        while owner < number:
            owner, texts = next(captions, (math.inf, []))
        yield texts if owner == number else []


def _is_sorted(table: RowTable) -> bool:
    """Return whether the rows of a table are in ascending order of their `image_id`."""
    last = -1
    for group in table.groups(["image_id"]):
        ids = group["image_id"].to_numpy()
        if (np.diff(ids, prepend=last) < 0).any():
            return False
        last = ids[-1] if len(ids) else last
    return True
