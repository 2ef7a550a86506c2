"""Measures how much words as text improve a search by vectors, on an index with captions.

    python benchmarks/text_search.py results/flickr8k/index/ncca [--split test] [--seed 0]

One caption of each photo of the split is a query and is removed from the index. In the condition `captions`, the other
captions of all photos are searched. In the condition `half`, every second photo has no captions. In the condition
`none`, the photos of the split have no captions, but the other photos have captions. Each condition prints a line with
the recalls of the search by vectors alone, and a line with the recalls of the search by vectors and words, in percent.

The search `vectors and any word` is an alternative that was rejected: a photo matches if it has at least one word of
the query. jointspace requires all words.

The queries `one word` and `two words` are words of the removed captions. A photo of the split is relevant if its
removed caption has the words. The line has the share of relevant photos among the first 10 photos of the split, in
percent of the largest possible share.

The other lines compare the time of searches without words as text (`ours`) and with words as text (`reference`), and
have the seconds for making and opening the full-text index, and its share of the bytes of the index.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from interleave import compare, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen

from pipeline.foreign.files import state_folder  # noqa: E402
from pipeline.index.search import Answer, Searcher  # noqa: E402
from pipeline.index.text_index import TextIndex, discard, tokenise  # noqa: E402
from pipeline.storage.index_shard import IndexShard, IndexWriter, forget  # noqa: E402
from pipeline.storage.stored_index import open_index  # noqa: E402
from pipeline.text.lemmas import STOP_WORDS  # noqa: E402

TOP = 10
SHORT_QUERIES = 200


def without_captions(shard: IndexShard, folder: Path, rows: Sequence[int]) -> Searcher:
    """Copy an index shard into `folder`, clear the rows `rows` of the table of captions in the copy, and open the copy
    for searches.

    The cleared rows keep their ids but have no text, so that these captions cannot be found as text. The copy keeps the
    vectors of the captions.
    """
    writer = IndexWriter(folder)
    writer.link(shard, but={"sentences.parquet"})
    writer.add_table("sentences.parquet", forget(shard.table("sentences"), np.array(rows)))
    writer.commit(source=shard.card)
    return Searcher(open_index(folder))


class AnyWord(TextIndex):
    """A full-text index in which a photo matches if it has at least one word of the query."""

    def _find(self, words: str, most: int) -> dict[int, float]:
        query = "SELECT rowid, bm25(words) FROM words WHERE words MATCH ? ORDER BY rank LIMIT 1000"
        return dict(self._database.execute(query, (words.replace(" AND ", " OR "),)).fetchall())


def recalls(answers: Sequence[Answer], images: Sequence[int]) -> dict[str, float]:
    """Return recall@1, recall@5 and recall@10 in percent. `images` has the id of the right image of each answer."""
    found = [[hit.row["image_id"] for hit in answer] for answer in answers]
    return {
        f"recall@{k}": 100 * float(np.mean([image in ids[:k] for ids, image in zip(found, images, strict=True)]))
        for k in (1, 5, TOP)
    }


def precision(searcher: Searcher, queries: Sequence[str], held_out: dict[int, set[str]], where: str, on: bool) -> float:
    """Return the mean share of relevant photos among the TOP first results of each query, in percent of the largest
    possible share.

    A photo is relevant for a query if its words in `held_out` (by image_id) contain all words of the query. `where` is
    the condition that photos must satisfy, and `on` says whether words are also searched as text.
    """
    shares = []
    for query, answer in zip(queries, searcher.batch(queries, TOP, where, on), strict=True):
        relevant = {image for image, words in held_out.items() if words.issuperset(query.split())}
        found = sum(hit.row["image_id"] in relevant for hit in answer)
        shares.append(found / min(TOP, len(relevant)))
    return 100 * float(np.mean(shares))


def ask_each(searcher: Searcher, queries: Sequence[str], match_text: bool) -> None:
    for query in queries:
        searcher.images(query, TOP, None, match_text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    shard = IndexShard(options.index)
    split = {row["image_id"]: row["split"] for row in shard.table("images").to_pylist()}
    captions = shard.table("sentences").to_pylist()
    rows_of: dict[int, list[int]] = {}
    for row, caption in enumerate(captions):
        rows_of.setdefault(caption["image_id"], []).append(row)
    images = [image for image in rows_of if split[image] == options.split]
    held_out = {image: int(rng.choice(rows_of[image])) for image in images}
    queries = [captions[held_out[image]]["text"] for image in images]
    removed = {
        "captions": list(held_out.values()),
        "half": [*held_out.values(), *(row for image in list(rows_of)[::2] for row in rows_of[image])],
        "none": [row for image in images for row in rows_of[image]],
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder  # The full-text indexes of the user stay unchanged.
        searchers = {name: without_captions(shard, Path(folder) / name, rows) for name, rows in removed.items()}
        for name, searcher in searchers.items():
            for kind, on in (("vectors", False), ("vectors and words", True)):
                answers = searcher.batch(queries, TOP, match_text=on)
                matched = sum(answer.matched for answer in answers)
                print(json.dumps({"condition": name, "search": kind, "matched": matched, **recalls(answers, images)}))
            alternative = Searcher(searcher.index)
            alternative.text_index = AnyWord(searcher.index)
            found = recalls(alternative.batch(queries, TOP), images)
            print(json.dumps({"condition": name, "search": "vectors and any word", **found}))
        words = {image: set(tokenise(captions[row]["text"])) - STOP_WORDS for image, row in held_out.items()}
        counts: dict[str, int] = {}
        for word in (word for own in words.values() for word in own):
            counts[word] = counts.get(word, 0) + 1
        known = sorted(word for word, count in counts.items() if 5 <= count <= len(images) // 10)
        several = [sorted(own.intersection(known)) for own in words.values()]
        drawn = {
            "one word": rng.permutation(known)[:SHORT_QUERIES].tolist(),
            "two words": [" ".join(rng.permutation(own)[:2]) for own in several if len(own) > 1][:SHORT_QUERIES],
        }
        where = f"split = '{options.split}'"
        for name, short in drawn.items():
            shares = [precision(searchers["captions"], short, words, where, on) for on in (False, True)]
            print(json.dumps({"condition": name, "queries": len(short), "vectors": shares[0], "with words": shares[1]}))

        searcher = searchers["captions"]
        matched = [answer.matched for answer in searcher.batch(queries, TOP)]
        for name, wanted in (("no photo has the words", False), ("some photos have the words", True)):
            chosen = [query for query, found in zip(queries, matched, strict=True) if found == wanted]
            both = [partial(ask_each, searcher, chosen, on) for on in (False, True)]
            report(compare(f"{len(chosen)} captions, {name}", both[0], both[1]))
        discard()
        for name in ("made", "opened"):
            start = time.process_time()
            TextIndex(searcher.index)
            print(json.dumps({"name": f"the full-text index is {name}", "cpu_seconds": time.process_time() - start}))
        stored = sum(path.stat().st_size for path in (state_folder("words") or Path(folder)).iterdir())
        whole = sum(file.bytes for file in shard.card.files.values())
        print(json.dumps({"bytes": stored, "index_bytes": whole, "share": stored / whole}))


if __name__ == "__main__":
    main()
