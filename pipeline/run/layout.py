"""Where each artefact of a run lies. The rules, the commands and the Python API all ask here.

A name may be a wildcard, `layout.features("{encoder}")`, which makes the path a pattern of Snakemake's.
"""

from dataclasses import dataclass, replace
from pathlib import Path


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
class Layout:
    """The artefacts of the run whose folder is `root`, of the collection in `data_root`."""

    root: Path
    data_root: Path = Path()

    @property
    def config(self) -> Path:
        """The configuration of the run: all that differs from the defaults."""
        return self.root / "config.yaml"

    @property
    def benchmarks(self) -> Path:
        """Seconds and memory of every job, recorded by Snakemake."""
        return self.root / "benchmarks"

    # --- the collection

    @property
    def demo(self) -> Artefact:
        """The collection itself where the run has drawn it; it lies outside the run's folder."""
        return Artefact("demo", self.data_root, self.data_root / "demo.json")

    @property
    def manifest(self) -> Artefact:
        """A run depends on its images, sentences and so on, not on where they lie and what was left out."""
        return replace(self._folder("manifest", "manifest.json"), key="fingerprint")

    def manifest_shard(self, number: int) -> Artefact:
        """The rows of a shard."""
        return self.file(f"manifest/shards/{number:05d}.json")

    # --- images

    def encoder(self, name: str) -> Artefact:
        return self._folder(f"encoders/{name}", "model.json")

    def feature_map(self, encoder: str) -> Artefact:
        """The map of another encoder's features to those of this one."""
        return self._parameters(f"encoders/{encoder}/map")

    def features(self, encoder: str) -> Shards:
        return self._shards(f"features/{encoder}")

    def regions(self, encoder: str) -> Shards:
        return self._shards(f"regions/{encoder}")

    # --- text

    def text_encoder(self, name: str) -> Artefact:
        return self._folder(f"text/encoders/{name}", "model.json")

    @property
    def token_vocabulary(self) -> Artefact:
        """The words of sequences and trees."""
        return self.file("text/tokens.json")

    @property
    def labels(self) -> Artefact:
        """The relations and phrases of trees."""
        return self.file("text/labels.json")

    @property
    def word_vectors(self) -> Artefact:
        return self._parameters("text/word-vectors")

    @property
    def parser(self) -> Artefact:
        return self._folder("parser", "pipeline.json")

    def sentences(self, form: str) -> Shards:
        """The sentences as `tokens` or `trees`, or as the vectors of the text encoder of this name."""
        return self._shards(f"text/{form}")

    @property
    def parses(self) -> Shards:
        return self._shards("text/parses", ".conllu")

    def documents(self, name: str, encoder: str) -> Shards:
        """Weak texts as the vectors of a text encoder."""
        return self._shards(f"text/documents/{name}/{encoder}")

    def simulated(self, documents: str) -> Artefact:
        path = self.root / f"text/simulated/{documents}.parquet"
        return Artefact(f"text/simulated/{documents}", path, path.with_name(path.name + ".json"))

    # --- models

    def moments(self, pairs: str) -> Shards:
        """Moments of the pairs `target`, `dev` or `auxiliary/<documents>`; of `study/...` in folds."""
        return Shards(f"moments/{pairs}", self.root / f"moments/{pairs}", whole=True)

    def model(self, name: str) -> Artefact:
        return self._folder(f"models/{name}", "model.json")

    def model_vocabulary(self, model: str) -> Artefact:
        """The vocabularies of an ensemble's members, in one file."""
        return self.file(f"models/{model}/vocabulary.json")

    def embeddings(self, model: str) -> Shards:
        return self._shards(f"embeddings/{model}")

    def index(self, bundle: str) -> Artefact:
        """The bundle of a model; `<model>/00` and so on where it has several."""
        return self._folder(f"index/{bundle}", "card.json")

    @property
    def removed(self) -> list[Path]:
        """The lists of what `remove` has taken out of the indices of this run."""
        return sorted(path for depth in ("*", "*/*") for path in self.root.glob(f"index/{depth}/removed.txt"))

    # --- alignments and phrases of multi-vector models

    def alignments(self, model: str, split: str) -> Artefact:
        return self._sidecar(f"alignments/{model}/{split}.jsonl")

    def phrases(self, model: str, split: str) -> Artefact:
        folder = self.root / f"phrases/{model}/{split}"
        return Artefact(f"phrases/{model}/{split}", folder, folder / "phrases.parquet.json")

    # --- evaluation

    def evaluation(self, model: str, split: str, protocol: str) -> Artefact:
        return self.file(f"evaluation/{model}.{split}.{protocol}.json")

    @property
    def summary(self) -> Artefact:
        return self._sidecar("evaluation/summary.json")

    @property
    def summary_table(self) -> Artefact:
        return self.file("evaluation/summary.md")

    def phrase_ranking(self, model: str, split: str) -> Artefact:
        return self.file(f"evaluation/phrases/{model}.{split}.json")

    # --- descriptions: `subject` is a split, or `<split>.boxes`

    def generator(self, name: str) -> Artefact:
        return self._folder(f"generators/{name}", "model.json")

    def descriptions(self, generator: str, subject: str) -> Artefact:
        return self._folder(f"descriptions/{generator}.{subject}", "descriptions.json")

    def description_page(self, generator: str, subject: str) -> Artefact:
        return self.file(f"descriptions/{generator}.{subject}/index.html")

    def description_evaluation(self, generator: str, subject: str) -> Artefact:
        return self.file(f"evaluation/descriptions/{generator}.{subject}.json")

    # --- the papers' tables, and the report

    @property
    def study(self) -> Artefact:
        return self._folder("study", "study.json")

    @property
    def tables(self) -> Artefact:
        return self._sidecar("study/tables.md")

    def sweep(self, model: str) -> Artefact:
        return self._folder(f"sweeps/{model}", "sweep.json")

    @property
    def reproduction(self) -> Artefact:
        return self.file("reproduction.md")

    @property
    def audit(self) -> Artefact:
        return self._sidecar("audit/audit.parquet")

    @property
    def report(self) -> Artefact:
        return self.file("report/index.html")

    def _folder(self, name: str, commit: str) -> Artefact:
        return Artefact(name, self.root / name, self.root / name / commit)

    def file(self, name: str) -> Artefact:
        """A file that is its own commit."""
        return Artefact(name, self.root / name, self.root / name)

    def _sidecar(self, name: str) -> Artefact:
        """A file with its commit beside it."""
        return Artefact(name, self.root / name, self.root / f"{name}.json")

    def _parameters(self, name: str) -> Artefact:
        """Tensors, and the JSON file beside them."""
        return Artefact(name, self.root / f"{name}.safetensors", self.root / f"{name}.json")

    def _shards(self, name: str, suffix: str = ".h5") -> Shards:
        return Shards(name, self.root / name, suffix)
