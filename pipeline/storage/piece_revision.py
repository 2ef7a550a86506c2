"""A bundle in pieces made from another by changing some of its pieces, or adding some; all others are linked to."""

from collections.abc import Iterator, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundle_folders import piece_file
from pipeline.storage.cards import NUMBER
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.fingerprint import fingerprint, require_same
from pipeline.storage.revision import KEY_COLUMNS, forget, is_removed
from pipeline.storage.tables import to_parquet


class PieceRevision:
    """The bundle `folder`, to be written to `output`. Time and memory are those of the pieces that change.

    Raises UsageError where `output` is the bundle itself.
    """

    def __init__(self, folder: Path, output: Path) -> None:
        self.bundle, self.writer = Bundle(folder), BundleWriter(output)
        if output.resolve() == self.bundle.folder.resolve():
            raise UsageError(f"{output} is the bundle to start from; give --output another folder")
        self.pieces = {one: [dict(piece) for piece in self.bundle.pieces(one)] for one in NUMBER}
        self.inputs: dict[str, str] = {}
        self.packed_table = cache(self.bundle.packed_table)  # whose files are hashed when they are opened

    @property
    def modalities(self) -> list[str]:
        """Those that the bundle has."""
        return [one for one in NUMBER if self.pieces[one]]

    def rows(self, modality: str) -> int:
        """The rows of a table, with those that were added."""
        return sum(piece["rows"] for piece in self.pieces[modality])

    def end(self, modality: str) -> int:
        """The first id that nothing has, and nothing had."""
        numbers = (group[NUMBER[modality]].to_numpy() for group in self._groups(modality, NUMBER[modality]))
        return max((int(one.max(initial=-1)) + 1 for one in numbers), default=0)

    def find(self, modality: str, column: str, texts: Sequence[str]) -> set[str]:
        """Those of `texts` that are in a `column`, which is read through."""
        wanted, found = pa.array(texts, pa.string()), set()
        for group in self._groups(modality, column) if len(texts) else ():
            found.update(group.filter(pc.is_in(group[column], wanted))[column].to_pylist())
        return found

    def _groups(self, modality: str, column: str) -> Iterator[pa.Table]:
        return self.packed_table(modality).groups([column]) if self.pieces[modality] else iter(())

    def alive(self, modality: str, image_id: np.ndarray) -> np.ndarray:
        """(k,) the rows that are of some images, and were not removed."""
        table = self.packed_table(modality)
        rows = table.find("image_id", image_id)
        there = [one[KEY_COLUMNS[modality][-1]] is not None for one in table.records(rows)]
        return rows[np.array(there, bool)]

    def by_piece(self, modality: str, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The ascending `rows` (k,) of a table by the number of their piece, where they are counted from 0."""
        starts = np.cumsum([0, *(piece["rows"] for piece in self.pieces[modality])])
        cuts = np.searchsorted(rows, starts)
        for number in np.flatnonzero(np.diff(cuts)):
            yield int(number), rows[cuts[number] : cuts[number + 1]] - starts[number]

    def index(self, modality: str, number: int) -> memoryview:
        """The piece of the index."""
        return self.bundle.map(piece_file(modality, number, ".faiss"))

    def table(self, modality: str, number: int) -> pa.Table:
        """The piece of the table."""
        return self.packed_table(modality).file(number).unpack()

    def put(self, modality: str, number: int, data: memoryview, table: pa.Table) -> None:
        """Write a piece in the place of another, or behind the last."""
        self.writer.add(piece_file(modality, number, ".faiss"), data)
        self.writer.add(piece_file(modality, number, ".parquet"), to_parquet(table))
        about = {"rows": table.num_rows, "count": int((~is_removed(table)).sum())}
        self.pieces[modality][number:] = [about, *self.pieces[modality][number + 1 :]]

    def forget(self, modality: str, number: int, rows: np.ndarray, data: memoryview) -> None:
        """Write a piece of which `data` is the index, with only ids left in some of its `rows`."""
        self.put(modality, number, data, forget(self.table(modality, number), rows))

    def changed_shards(self, embeddings: Embeddings) -> list[int]:
        """The shards that are not those that the bundle was made from: others, or new ones. Reads the commits of all
        shards, and the tables of these.

        Raises IntegrityError unless `embeddings` are of its model, and number the images and sentences that it has of
        these shards as it does.
        """
        folder, before = self.bundle.folder, self.bundle.card["inputs"]
        if "joined" in before:
            raise UsageError(f"no run numbers what was joined in {folder}: add to it with --from")
        require_same("model", {str(folder): before["model"], str(embeddings.folder): embeddings.model})
        manifest, self.inputs = embeddings.manifest, embeddings.inputs
        names = {f"embeddings/{number:05d}": number for number in range(manifest.n_shards)}
        numbers = [number for name, number in names.items() if before.get(name) != self.inputs[name]]
        ids = [np.arange(embeddings.rows[n].first_image, embeddings.rows[n].last_image) for n in numbers]
        for modality in self.modalities:
            table, given = self.packed_table(modality), int(manifest.bounds(modality)[-1])
            number, keys = NUMBER[modality], [NUMBER[modality], *KEY_COLUMNS[modality]]
            records = table.records(self.alive(modality, np.concatenate([np.empty(0, np.int64), *ids])))
            held = [{key: record[key] for key in keys} for record in sorted(records, key=itemgetter(number))]
            known = [record[number] for record in held]
            last = table.records([table.num_rows - 1])[0][number]
            if max([last, *known]) >= given or manifest.rows(modality, known).select(keys).to_pylist() != held:
                raise IntegrityError(
                    f"{embeddings.manifest.folder} numbers its {modality} otherwise than {folder}; give the run that"
                    " the bundle was made from, grown at its end"
                )
        return numbers

    def commit(self, **more: Any) -> None:
        """Link to all other files, and write the card, with `more` on it. What was measured of the index stays as it
        was."""
        changed = {name: about["sha256"] for name, about in self.writer.files.items()}
        self.writer.link(self.bundle, but=set(self.writer.files))
        card = {name: value for name, value in self.bundle.card.items() if name != "files"}
        for modality in self.modalities:
            pieces, files = self.pieces[modality], self.writer.files
            names = [f"{modality}.faiss", *(piece_file(modality, n, ".faiss") for n in range(len(pieces)))]
            count, size = sum(one["count"] for one in pieces), sum(files[name]["bytes"] for name in names)
            card[modality] = {**card[modality], "count": count, "bytes": size, "pieces": pieces}
        inputs = {**card["inputs"], **self.inputs, "bundle": card["fingerprint"]}
        digest = fingerprint("pieces revised", 1, changed, inputs)
        self.writer.commit({**card, **more, "inputs": inputs, "fingerprint": digest})
