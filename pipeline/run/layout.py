"""Where each artefact of a run lies. The rules, the commands and the Python API all ask here.

A name may be a wildcard, `layout.features("{encoder}")`, which makes the path a pattern of Snakemake's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.storage.files import require_no_links


@dataclass(frozen=True)
class Artefact:
    """A file or folder that one job makes.

    `name` stands in messages, and `path` is the file or folder. `commit` is the JSON file that is written last; without
    it the artefact does not exist. What is made from the artefact depends on all of it, or on the value that its commit
    has under `key`.
    """

    name: str
    path: Path
    commit: Path
    key: str = ""


@dataclass(frozen=True)
class Shards:
    """An artefact in shards: `folder/shard-00000.h5` and so on, each with its commit.

    Every part (a range of shards, which one job makes) has the file `folder/part-00000.json`. It is written when all
    shards of the part are made, and vouches for their commits. One job makes all shards of a `whole` artefact.
    """

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
        """The pattern of the commits of all shards, as the inputs of a commit name them."""
        return self.folder / f"shard-*{self.suffix}.json"

    def part(self, number: int | str) -> Path:
        """The commit of a part; `number` may be a wildcard."""
        return self.folder / f"part-{number if isinstance(number, str) else format(number, '05d')}.json"


Made = TypeVar("Made", Artefact, Shards)


@dataclass(frozen=True)
class Line(Generic[Made]):
    """A line of the layout: a property that is the artefact `make(root, pattern)`."""

    pattern: str
    make: Callable[[Path, str], Made]

    def __get__(self, layout: "Layout", owner: type | None = None) -> Made:
        return layout.permit(self.make(layout.root, self.pattern))


@dataclass(frozen=True)
class NamedLine(Generic[Made]):
    """A line of the layout whose pattern has {names} in braces: a method that takes the names."""

    pattern: str
    make: Callable[[Path, str], Made]

    def __get__(self, layout: "Layout", owner: type | None = None) -> Callable[..., Made]:
        fields = re.findall(r"{(\w+)}", self.pattern)

        def at(*names: str) -> Made:
            return layout.permit(self.make(layout.root, self.pattern.format(**dict(zip(fields, names, strict=True)))))

        return at


def shards(pattern: str, suffix: str = ".h5", whole: bool = False) -> NamedLine[Shards]:
    return NamedLine(pattern, lambda root, name: Shards(name, root / name, suffix, whole))


def artefact(pattern: str, commit: str = "", path: str = "", key: str = "") -> Line[Artefact]:
    """The file or folder `pattern` + `path`, with the commit `pattern` + `commit`: the file itself, a file in the
    folder, or a file beside the file."""
    return Line(pattern, lambda root, name: Artefact(name, root / f"{name}{path}", root / f"{name}{commit}", key))


def artefacts(pattern: str, commit: str = "", path: str = "") -> NamedLine[Artefact]:
    """Artefacts as `artefact` has them, with names in the pattern."""
    return NamedLine(pattern, artefact(pattern, commit, path).make)


def _permit_all(made: Artefact | Shards) -> None:
    """Permit every artefact: the layout of a command."""


@dataclass(frozen=True)
class Layout:
    """The artefacts of the run whose folder is `root`, of the collection in `data_root`.

    `require` is called with each artefact that somebody asks for. The layout that the function of a stage has raises
    UndeclaredInputError for an artefact that the stage has not declared.
    """

    root: Path
    data_root: Path = Path()
    require: Callable[[Artefact | Shards], None] = field(default=_permit_all, compare=False)

    def permit(self, made: Made) -> Made:
        """Return an artefact, after `require` has permitted it."""
        self.require(made)
        return made

    # --- the collection

    manifest = artefact("manifest", "/manifest.json", key="fingerprint")
    """A run depends on its images, sentences and so on, not on where they lie and what was left out."""

    # --- images

    encoder = artefacts("encoders/{encoder}", "/model.json")
    any_encoder = artefacts("{encoder}", "/model.json")
    """An encoder by the path of its folder: `encoders/NAME` of images, `text/encoders/NAME` of texts."""
    any_vectors = shards("{encoder}")
    """The vectors of an encoder by the path of their folder: `features/NAME` of images, `text/NAME` of texts."""
    feature_map = artefacts("encoders/{encoder}/map", ".json", ".safetensors")
    """The map of another encoder's features to those of this one."""
    features = shards("features/{encoder}")
    regions = shards("regions/{encoder}")

    # --- text

    text_encoder = artefacts("text/encoders/{encoder}", "/model.json")
    token_vocabulary = artefact("text/tokens.json")
    """The words of sequences and trees."""
    labels = artefact("text/labels.json")
    """The relations and phrases of trees."""
    word_vectors = artefact("text/word-vectors", ".json", ".safetensors")
    parser = artefact("parser", "/pipeline.json")
    sentences = shards("text/{form}")
    """The sentences as `tokens` or `trees`, or as the vectors of the text encoder of this name."""
    parses = Line("text/parses", lambda root, name: Shards(name, root / name, ".conllu"))
    documents = shards("text/documents/{documents}/{encoder}")
    """Weak texts as the vectors of a text encoder."""
    simulated = artefacts("text/simulated/{documents}", ".parquet.json", ".parquet")

    # --- models

    moments = shards("moments/{pairs}", whole=True)
    """Moments of the pairs `target`, `dev` or `auxiliary/<documents>`; of `study/...` in folds."""
    model = artefacts("models/{model}", "/model.json")
    model_vocabulary = artefacts("models/{model}/vocabulary.json")
    """The vocabularies of an ensemble's members, in one file."""
    embeddings = shards("embeddings/{model}")
    index = artefacts("index/{bundle}", "/card.json")
    """The bundle of a model; `<model>/00` and so on where it has several."""

    # --- alignments and phrases of multi-vector models

    alignments = artefacts("alignments/{model}/{split}.jsonl", ".json")
    phrases = artefacts("phrases/{model}/{split}", "/phrases.parquet.json")

    # --- evaluation

    evaluation = artefacts("evaluation/{model}.{split}.{protocol}.json")
    summary = artefact("evaluation/summary.json", ".json")
    summary_table = artefact("evaluation/summary.md")
    phrase_ranking = artefacts("evaluation/phrases/{model}.{split}.json")

    # --- descriptions: `subject` is a split, or `<split>.boxes`

    generator = artefacts("generators/{generator}", "/model.json")
    descriptions = artefacts("descriptions/{generator}.{subject}", "/descriptions.json")
    description_page = artefacts("descriptions/{generator}.{subject}/index.html")
    description_evaluation = artefacts("evaluation/descriptions/{generator}.{subject}.json")

    # --- the papers' tables, and the report

    study = artefact("study", "/study.json")
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
        return self.permit(Artefact("demo", self.data_root, self.data_root / "demo.json"))

    @property
    def removed(self) -> list[Path]:
        """The lists of what `remove` has taken out of the indexes of this run. Raises IntegrityError for a link."""
        lists = sorted(path for depth in ("*", "*/*") for path in self.root.glob(f"index/{depth}/removed.txt"))
        for path in lists:
            require_no_links(self.root.joinpath(*path.relative_to(self.root).parts[:2]), path)
        return lists

    def file(self, name: str) -> Artefact:
        """A file that is its own commit."""
        return self.permit(Artefact(name, self.root / name, self.root / name))
