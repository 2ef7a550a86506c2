"""Where each artefact of a run lies. The rules, the commands and the Python API all ask here.

A name may be a wildcard, `layout.features("{encoder}")`, which makes the path a pattern of Snakemake's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.storage.files import require_no_links


@dataclass(frozen=True)
class Artefact:
    """What one job makes: `name` in messages, `path` the file or folder, and `commit` the JSON file that is written
    last, without which the artefact does not exist. What is made from it depends on all of it, or on what its commit
    says under `key`."""

    name: str
    path: Path
    commit: Path
    key: str = ""


@dataclass(frozen=True)
class Shards:
    """An artefact in shards: `folder/shard-00000.h5` and so on, each with its commit, and for every part (a range of
    shards, one job) `folder/part-00000.json`, which is written when all shards of the part are made and vouches for
    their commits. One job makes all shards of a `whole` one."""

    name: str
    folder: Path
    suffix: str = ".h5"
    whole: bool = False

    def shard(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}{self.suffix}"

    def commit(self, number: int) -> Path:
        shard = self.shard(number)
        return shard.with_name(f"{shard.name}.json")

    @property
    def every_commit(self) -> Path:
        """Those of all shards, as the inputs of a commit name them."""
        return self.folder / f"shard-*{self.suffix}.json"

    def part(self, number: int | str) -> Path:
        """The commit of a part; `number` may be a wildcard."""
        return self.folder / f"part-{number if isinstance(number, str) else format(number, '05d')}.json"


@dataclass(frozen=True)
class Place:
    """A line of the layout: what `make(root, name)` says of an artefact, whose name is `pattern`. It is a property of
    the layout, or, where the pattern has {names} in braces, a method that takes these."""

    pattern: str
    make: Callable[[Path, str], Artefact | Shards]

    def __get__(self, layout: "Layout", owner: type | None = None) -> Any:
        fields = re.findall(r"{(\w+)}", self.pattern)

        def at(*names: str) -> Artefact | Shards:
            return self.make(layout.root, self.pattern.format(**dict(zip(fields, names, strict=True))))

        return at if fields else at()


def shards(pattern: str, suffix: str = ".h5", whole: bool = False) -> Place:
    return Place(pattern, lambda root, name: Shards(name, root / name, suffix, whole))


def artefact(pattern: str, commit: str = "", path: str = "", key: str = "") -> Place:
    """The file or folder `pattern` + `path`, with the commit `pattern` + `commit`: the file itself, one in the folder,
    or one beside the file."""
    return Place(pattern, lambda root, name: Artefact(name, root / f"{name}{path}", root / f"{name}{commit}", key))


@dataclass(frozen=True)
class Layout:
    """The artefacts of the run whose folder is `root`, of the collection in `data_root`."""

    root: Path
    data_root: Path = Path()

    # --- the collection

    manifest = artefact("manifest", "/manifest.json", key="fingerprint")
    """A run depends on its images, sentences and so on, not on where they lie and what was left out."""

    # --- images

    encoder = artefact("encoders/{encoder}", "/model.json")
    any_encoder = artefact("{encoder}", "/model.json")
    """An encoder by the path of its folder: `encoders/NAME` of images, `text/encoders/NAME` of texts."""
    any_vectors = shards("{encoder}")
    """The vectors of an encoder by the path of their folder: `features/NAME` of images, `text/NAME` of texts."""
    feature_map = artefact("encoders/{encoder}/map", ".json", ".safetensors")
    """The map of another encoder's features to those of this one."""
    features = shards("features/{encoder}")
    regions = shards("regions/{encoder}")

    # --- text

    text_encoder = artefact("text/encoders/{encoder}", "/model.json")
    token_vocabulary = artefact("text/tokens.json")
    """The words of sequences and trees."""
    labels = artefact("text/labels.json")
    """The relations and phrases of trees."""
    word_vectors = artefact("text/word-vectors", ".json", ".safetensors")
    parser = artefact("parser", "/pipeline.json")
    sentences = shards("text/{form}")
    """The sentences as `tokens` or `trees`, or as the vectors of the text encoder of this name."""
    parses = shards("text/parses", ".conllu")
    documents = shards("text/documents/{documents}/{encoder}")
    """Weak texts as the vectors of a text encoder."""
    simulated = artefact("text/simulated/{documents}", ".parquet.json", ".parquet")

    # --- models

    moments = shards("moments/{pairs}", whole=True)
    """Moments of the pairs `target`, `dev` or `auxiliary/<documents>`; of `study/...` in folds."""
    model = artefact("models/{model}", "/model.json")
    model_vocabulary = artefact("models/{model}/vocabulary.json")
    """The vocabularies of an ensemble's members, in one file."""
    embeddings = shards("embeddings/{model}")
    index = artefact("index/{bundle}", "/card.json")
    """The bundle of a model; `<model>/00` and so on where it has several."""

    # --- alignments and phrases of multi-vector models

    alignments = artefact("alignments/{model}/{split}.jsonl", ".json")
    phrases = artefact("phrases/{model}/{split}", "/phrases.parquet.json")

    # --- evaluation

    evaluation = artefact("evaluation/{model}.{split}.{protocol}.json")
    summary = artefact("evaluation/summary.json", ".json")
    summary_table = artefact("evaluation/summary.md")
    phrase_ranking = artefact("evaluation/phrases/{model}.{split}.json")

    # --- descriptions: `subject` is a split, or `<split>.boxes`

    generator = artefact("generators/{generator}", "/model.json")
    descriptions = artefact("descriptions/{generator}.{subject}", "/descriptions.json")
    description_page = artefact("descriptions/{generator}.{subject}/index.html")
    description_evaluation = artefact("evaluation/descriptions/{generator}.{subject}.json")

    # --- the papers' tables, and the report

    study = artefact("study", "/study.json")
    tables = artefact("study/tables.md", ".json")
    sweep = artefact("sweeps/{model}", "/sweep.json")
    reproduction = artefact("reproduction.md")
    audit = artefact("audit/audit.parquet", ".json")
    report = artefact("report/index.html")

    @property
    def config(self) -> Path:
        """The configuration of the run: all that differs from the defaults."""
        return self.root / "config.yaml"

    @property
    def benchmarks(self) -> Path:
        """Seconds and memory of every job, recorded by Snakemake."""
        return self.root / "benchmarks"

    @property
    def demo(self) -> Artefact:
        """The collection itself where the run has drawn it; it lies outside the run's folder."""
        return Artefact("demo", self.data_root, self.data_root / "demo.json")

    @property
    def removed(self) -> list[Path]:
        """The lists of what `remove` has taken out of the indexes of this run. Raises IntegrityError for a link."""
        lists = sorted(path for depth in ("*", "*/*") for path in self.root.glob(f"index/{depth}/removed.txt"))
        for path in lists:
            require_no_links(self.root.joinpath(*path.relative_to(self.root).parts[:2]), path)
        return lists

    def file(self, name: str) -> Artefact:
        """A file that is its own commit."""
        return Artefact(name, self.root / name, self.root / name)
