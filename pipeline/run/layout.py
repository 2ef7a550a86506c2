"""The path of each artefact of a run. The rules, the commands and the Python API all take their paths from here.

A name that is passed to a method may be a Snakemake wildcard: `layout.features("{encoder}")` has a path pattern for
Snakemake.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.storage.files import require_no_links


@dataclass(frozen=True)
class Artefact:
    """A file or folder made by one job.

    `name` identifies the artefact in messages and in declarations of inputs, and `path` is the file or folder. `commit`
    is the commit record, a JSON file that is written last. Without this file the artefact counts as missing. A page has
    no record, and `commit` is the page itself. Jobs that read the artefact depend on its whole content, or only on the
    value under `key` in the commit record if `key` is given.
    """

    name: str
    path: Path
    commit: Path
    key: str = ""


@dataclass(frozen=True)
class Shards:
    """An artefact that consists of shards: `folder/shard-00000.h5` and so on, each with a commit record.

    A part is the range of shards made by one job. The commit record of a part is `folder/part-00000.json` and so on. It
    is written when all shards of the part exist, and lists the digests of the commit records of these shards.

    The files of a `chunked` artefact are `folder/chunk-00000.h5` and so on. Each file is made from a chunk of the
    shards of the manifest, and a single job makes all files.
    """

    name: str
    folder: Path
    suffix: str = ".h5"
    chunked: bool = False

    def shard(self, number: int) -> Path:
        return self.folder / f"{self._label}-{number:05d}{self.suffix}"

    def commit(self, number: int) -> Path:
        shard = self.shard(number)
        return shard.with_name(f"{shard.name}.json")

    @property
    def every_commit(self) -> Path:
        """The path pattern of the commit records of all shards.

        If a job reads all shards, its commit record lists this pattern as an input.
        """
        return self.folder / f"{self._label}-*{self.suffix}.json"

    @property
    def _label(self) -> str:
        return "chunk" if self.chunked else "shard"

    def part_record(self, number: int | str) -> Path:
        """Return the path of the commit record of a part. `number` may be a Snakemake wildcard."""
        return self.folder / f"part-{number if isinstance(number, str) else format(number, '05d')}.json"


Made = TypeVar("Made", Artefact, Shards)


@dataclass(frozen=True)
class Line(Generic[Made]):
    """An entry of the layout for one artefact, whose `pattern` is a fixed path below the folder of the run.

    An entry is declared as an attribute of the class Layout. In an object of this class, the attribute is the artefact
    that `make(root, pattern)` returns. `root` is the folder of the run.
    """

    pattern: str
    make: Callable[[Path, str], Made]

    def __get__(self, layout: "Layout", owner: type | None = None) -> Made:
        return layout.permit(self.make(layout.root, self.pattern))


@dataclass(frozen=True)
class NamedLine(Generic[Made]):
    """An entry of the layout for artefacts of one kind, whose `pattern` is a path with {names} in braces.

    An entry is declared as an attribute of the class Layout. In an object of this class, the attribute is a method. The
    method takes a value for each name, such as the name of a model, in the order of the names in the pattern. It
    returns the artefact that `make(root, path)` returns. `root` is the folder of the run, and `path` is the completed
    pattern.
    """

    pattern: str
    make: Callable[[Path, str], Made]

    def __get__(self, layout: "Layout", owner: type | None = None) -> Callable[..., Made]:
        fields = re.findall(r"{(\w+)}", self.pattern)

        def at(*names: str) -> Made:
            return layout.permit(self.make(layout.root, self.pattern.format(**dict(zip(fields, names, strict=True)))))

        return at


def shards(pattern: str, chunked: bool = False) -> NamedLine[Shards]:
    """Declare artefacts of shards in the folder `pattern`, which has {names} in braces.

    `chunked` says whether the files are made from chunks of shards, as the class Shards describes.
    """
    return NamedLine(pattern, lambda root, name: Shards(name, root / name, chunked=chunked))


def artefact(pattern: str, commit: str = "", path: str = "", key: str = "") -> Line[Artefact]:
    """Declare an artefact at `pattern` + `path`, with its commit record at `pattern` + `commit`.

    The commit record is the file of the artefact itself, another file in the folder of the artefact, or a file next to
    the artefact. If `key` is given, readers of the artefact depend only on the value under this key in the commit
    record.
    """
    return Line(pattern, lambda root, name: Artefact(name, root / f"{name}{path}", root / f"{name}{commit}", key))


def artefacts(pattern: str, commit: str = "", path: str = "") -> NamedLine[Artefact]:
    """Declare artefacts at `pattern` + `path` with commit records at `pattern` + `commit`. The pattern has {names} in
    braces. If `commit` and `path` are "", the file of an artefact is its own commit record."""
    return NamedLine(pattern, artefact(pattern, commit, path).make)


def _permit_all(made: Artefact | Shards) -> None:
    """Permit every artefact. A layout calls this function as `require` if it belongs to a command, which has no
    declared inputs."""


@dataclass(frozen=True)
class Layout:
    """The artefacts of the run in the folder `root`. The folder of its collection is `data_root`.

    `require` is called with each artefact before it is returned. In the layout that a stage's function gets, `require`
    raises UndeclaredInputError for an artefact that the stage does not declare.
    """

    root: Path
    data_root: Path = Path()
    require: Callable[[Artefact | Shards], None] = field(default=_permit_all, compare=False)

    def permit(self, made: Made) -> Made:
        """Call `require` with an artefact, and return the artefact if this raises no error."""
        self.require(made)
        return made

    # --- the collection

    manifest = artefact("manifest", "/manifest.json", key="fingerprint")
    """The images, sentences and other rows of the collection. Jobs depend on the fingerprint of these rows, but not on
    the location of the photos or on the list of rejected photos."""

    # --- images

    encoder = artefacts("encoders/{encoder}", "/model.json")
    any_encoder = artefacts("{encoder}", "/model.json")
    """An encoder. The argument is the path of its folder: `encoders/NAME` for images, `text/encoders/NAME` for
    texts."""
    any_vectors = shards("{encoder}")
    """The output vectors of an encoder. The argument is the path of their folder: `features/NAME` for images,
    `text/NAME` for texts."""
    feature_map = artefacts("encoders/{encoder}/map", ".json", ".safetensors")
    """The linear map from another encoder's features to the features of this encoder."""
    features = shards("features/{encoder}")
    regions = shards("regions/{encoder}")

    # --- text

    text_encoder = artefacts("text/encoders/{encoder}", "/model.json")
    token_vocabulary = artefact("text/tokens.json")
    """The vocabulary of the words in token sequences and trees."""
    labels = artefact("text/labels.json")
    """The names of the dependency relations and phrase labels in trees."""
    word_vectors = artefact("text/word-vectors", ".json", ".safetensors")
    parser = artefact("parser", "/pipeline.json")
    sentences = shards("text/{form}")
    """The sentences as `tokens` or `trees`, or the vectors that a text encoder made from them. `form` is `tokens`,
    `trees` or the name of the text encoder."""
    parses = Line("text/parses", lambda root, name: Shards(name, root / name, ".conllu"))
    documents = shards("text/documents/{documents}/{encoder}")
    """The vectors that a text encoder made from weak texts (title, tags, description)."""
    simulated = artefacts("text/simulated/{documents}", ".parquet.json", ".parquet")

    # --- models

    moments = shards("moments/{pairs}", chunked=True)
    """Second-moment matrices of pairs. `pairs` is `target`, `dev`, `auxiliary/<documents>`, `study/target` or
    `study/auxiliary/<documents>`. With `study`, the matrices are stored separately for each fold of the stage
    `study`."""
    model = artefacts("models/{model}", "/model.json")
    model_vocabulary = artefacts("models/{model}/vocabulary.json")
    """The vocabularies of the members of an ensemble, in one file."""
    embeddings = shards("embeddings/{model}")
    index = artefacts("index/{bundle}", "/card.json")
    """The index of a model. The argument is the name of the model. For one of several index shards, it is `<model>/00`
    and so on."""

    # --- alignments and phrases of multi-vector models

    alignments = artefacts("alignments/{model}/{split}.jsonl", ".json")
    phrases = artefacts("phrases/{model}/{split}", "/phrases.parquet.json")

    # --- evaluation

    evaluation = artefacts("evaluation/{model}.{split}.{protocol}.json")
    summary = artefact("evaluation/summary.json", ".json")
    summary_table = artefact("evaluation/summary.md")
    phrase_ranking = artefacts("evaluation/phrases/{model}.{split}.json")

    # --- generated captions: `subject` is a split, or `<split>.boxes`

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
        """The configuration file of the run. All keys that it does not contain have their default values."""
        return self.root / "config.yaml"

    @property
    def benchmarks(self) -> Path:
        """The folder in which Snakemake records the seconds and the memory of every job."""
        return self.root / "benchmarks"

    @property
    def demo(self) -> Artefact:
        """The synthetic demo collection, which is in `data_root`, outside the run's folder."""
        return self.permit(Artefact("demo", self.data_root, self.data_root / "demo.json"))

    @property
    def removed(self) -> list[Path]:
        """The paths of the lists of photos that were removed from the run's indexes by the command `remove`.

        The lists of the additions to the indexes are not included. Raises IntegrityError if a list, or a folder on the
        way to it, is a symbolic link.
        """
        lists = sorted(path for depth in ("*", "*/*") for path in self.root.glob(f"index/{depth}/removed.txt"))
        for path in lists:
            require_no_links(self.root.joinpath(*path.relative_to(self.root).parts[:2]), path)
        return lists

    @property
    def decisions(self) -> Path:
        """The path of the decisions about suspicious captions (see pipeline.storage.decisions).

        Raises IntegrityError if the file is a symbolic link.
        """
        path = self.audit.path.with_name("decisions.tsv")
        require_no_links(path.parent, path)
        return path

    def file(self, name: str) -> Artefact:
        """Return the artefact `name`, a file of the run at this path that is its own commit record."""
        return self.permit(Artefact(name, self.root / name, self.root / name))
