"""All keys of a configuration, in their order in config/default.yaml.

`python -m pipeline.config.keys` writes config/default.yaml from the keys, their defaults and their descriptions.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from pipeline.config.collection import AuxiliarySettings, CollectionSettings, DemoSettings, DocumentsSettings
from pipeline.config.encoders import EncoderEntry, ImageEncoderEntry, TermKeys, TextEncoderEntry
from pipeline.config.images import ExtractSettings, FinetuneSettings, ImageViewSettings, RegionsSettings
from pipeline.config.models import (
    EnsembleSettings,
    FitSettings,
    HubnessSettings,
    TrainSettings,
    TransferSettings,
    Variant,
)
from pipeline.config.registry import GENERATORS, MODELS
from pipeline.config.results import (
    AlignSettings,
    DescribeSettings,
    EvaluateSettings,
    ExtraTextSettings,
    GeneratorVariant,
    IndexSettings,
    OptimisationSettings,
    PhrasesSettings,
    ReproduceSettings,
    ServeSettings,
    StudySettings,
)
from pipeline.config.section import Device, Name, Names, Place, Positive, Section, Seed, key, with_kinds
from pipeline.config.text import ParseSettings, TokenVocabularySettings, WordVectorsSettings

SCHEDULER = r"^(local|slurm|kubernetes|\w+://.+)$"
DEMO_ENCODER = {"name": "colours", "kind": "colours"}
"""The image encoder of the demo, which needs no weights."""
OWN = {spec.key: spec for spec in (*MODELS, *GENERATORS) if spec.section}
"""The registered models and generators that have settings of their own, by the key of these settings."""
SHOWN_BELOW = {
    "fit": [spec.key for spec in MODELS if spec.section and spec.made_by == "fit"],
    "train_defaults": [spec.key for spec in MODELS if spec.section and spec.defaults == "train_defaults"],
    "language_defaults": [spec.key for spec in GENERATORS],
}
"""Key of a section with shared settings -> the keys of the sections that config/default.yaml shows after this section.
Each of them has the settings of one registered model or generator."""
COMMENT_COLUMN = 40
"""Column in which comments begin in config/default.yaml."""
YAML_HEAD = """\
# This file lists every key of jointspace with its default. The defaults run the demo.
# A configuration of your own needs only the keys that differ from the defaults. Run it with:
#   jointspace run my.yaml
# An unknown key is an error. A list in your configuration replaces the default list, and a mapping is merged with the
# default mapping. `python -m pipeline.config.keys` writes this file. Do not edit it by hand.
"""


class ClusterSettings(Section):
    """Settings of the Dask cluster that processes the shards of a job."""

    workers: Positive = key(2, "Number of workers.")
    options: dict[str, Any] = key(
        {}, "Options of dask's LocalCluster, dask_jobqueue's SLURMCluster or dask_kubernetes' KubeCluster."
    )


class Keys(Section):
    """All keys, without the sections of registered models and generators."""

    name: Name = key("demo", "Name of the run. Its results are in results_root/name.", title="The run")
    data_root: Place = key(
        "results/demo-collection", "Folder of the photos and their texts, relative to the current folder."
    )
    weights_root: Place = key(".", "Folder of weight files.")
    results_root: Place = key("results", "Folder of all runs.")
    models: Names = key(
        ("cca", "ncca", "sae"),
        "Models to train: names of registered models, variants and ensembles, or {name: ..., and "
        "the keys of a variant}.",
    )
    seed: Seed = key(0, "Seed of all random choices, at most 4294967294.")
    shard_size: Positive = key(4096, "Number of images per shard.")
    parts: Annotated[Positive, Field(le=99_999)] = key(
        1, "Number of jobs that share the shards of a stage: 1 on one machine, about one per node on a cluster."
    )
    device: Device = key(
        "auto", "Device for networks and matrix products: auto (a GPU if there is one) | cpu | cuda | cuda:N."
    )
    workers: Positive = key(
        1, "Number of processes that share the shards of a job. If a job has several GPUs, it has one process per GPU."
    )
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None = key(
        None,
        "Where the shards of a job are processed: null (this machine) | local, slurm or kubernetes "
        "(a new Dask cluster) | tcp://HOST:PORT (a running Dask scheduler).",
    )
    cluster: ClusterSettings = key(ClusterSettings, "Dask cluster that is started for each job.")
    demo: DemoSettings = key(DemoSettings, "Synthetic demo collection.", title="Collection: make-demo, ingest")
    collection: CollectionSettings = key(CollectionSettings, "Collection of photos and captions.")
    encoders: Annotated[tuple[ImageEncoderEntry, ...], Field(min_length=1)] = key(
        (DEMO_ENCODER,),
        "Image encoders. Their features are concatenated.",
        title="Images: prepare-encoder, extract, extract-regions, finetune",
    )  # fmt: skip
    query_encoders: tuple[ImageEncoderEntry, ...] = key(
        (), "Image encoders that only encode photos of queries, for precomputed features (made_by)."
    )
    extract: ExtractSettings = key(ExtractSettings, "Extraction of image features.")
    regions: RegionsSettings = key(RegionsSettings, "Image regions.")
    finetune: FinetuneSettings = key(FinetuneSettings, "Training of the encoders with weights: finetuned.")
    text: TermKeys = key(
        TermKeys,
        "Defaults for the tf-idf encoders in text_encoders.",
        title="Text: prepare-encoder, encode-sentences",
    )
    text_encoders: Annotated[tuple[TextEncoderEntry, ...], Field(min_length=1)] = key(
        ({"name": "tfidf", "kind": "tf-idf", "normalise": []},),
        "Text encoders. Their vectors are concatenated.",
    )
    query_text_encoders: tuple[TextEncoderEntry, ...] = key(
        (), "Text encoders that only encode texts of queries, for precomputed vectors (made_by)."
    )
    image_view: ImageViewSettings = key(
        ImageViewSettings, "Image features, as models and generators read them.", title="Linear models: accumulate, fit"
    )
    fit: FitSettings = key(FitSettings, "Fit of linear models. The values of each list are tried on dev.")
    parse: ParseSettings = key(
        ParseSettings,
        "Parses of captions, for models that read trees (docs/trees.md).",
        title="Neural models: parse, encode-tokens, train",
    )
    tokens: TokenVocabularySettings = key(TokenVocabularySettings, "Vocabulary of models that read words.")
    word_vectors: WordVectorsSettings = key(
        WordVectorsSettings, "Word vectors with which the training of models that read words starts."
    )
    train_defaults: TrainSettings = key(
        TrainSettings, "Defaults of the trained models below. bow and gru have no other keys."
    )
    auxiliary: AuxiliarySettings = key(
        AuxiliarySettings,
        "Auxiliary pairs: images and their weak texts.",
        title="Titles, tags and descriptions: encode-documents, accumulate, study",
    )
    documents: dict[Name, DocumentsSettings] = key(
        {
            "all": {"fields": ["title", "tags", "description"]},
            "title": {"fields": ["title"]},
            "tags": {"fields": ["tags"]},
            "description": {"fields": ["description"]},
        },
        "Weak texts by name: the fields to join, and their origin. Table 3 of Gong et al. 2014 uses the last three.",
    )
    transfer: TransferSettings = key(
        TransferSettings, "Training with auxiliary pairs. The values of each list are tried on dev."
    )
    study: StudySettings = key(StudySettings, "Experiments for the tables of Gong et al. 2014.")
    variants: dict[Name, Variant] = key(
        {"sae": {"model": "ncca", "training": "sae"}},
        "Models with settings of their own, as NAME: {model: a registered model, its own settings, "
        "and the keys below}. sae is the Stacked Auxiliary Embedding, which learns from weak texts "
        "too.",
        title="Variants and ensembles: fit-hubness, align, embed-phrases, rank-phrases",
    )
    ensembles: dict[Name, EnsembleSettings] = key(
        {}, "Ensembles of models, as NAME: {members: [models], weights: ...}."
    )
    hubness: HubnessSettings = key(HubnessSettings, "Hubness correction. The values of each list are tried on dev.")
    align: AlignSettings = key(AlignSettings, "Alignment of words with regions by multi-vector models.")
    phrases: PhrasesSettings = key(PhrasesSettings, "Evaluation of noun phrases against regions.")
    index: IndexSettings = key(IndexSettings, "Search indexes.", title="Results: build-index, evaluate")
    evaluate: EvaluateSettings = key(EvaluateSettings, "Evaluation of models.")
    generators: tuple[Name, ...] = key(
        (),
        "Caption generators to train and evaluate: nearest | mrnn | mrnn-regions | ranked-snippets "
        "| lbl | mlbl | mnlm | sc-nlm, or variants of them.",
        title="Generated captions: train-generator, describe, evaluate-descriptions",
    )
    generator_variants: dict[Name, GeneratorVariant] = key(
        {},
        "Generators with settings of their own, as NAME: {generator: a registered generator, its "
        "own settings, and the keys below}.",
    )
    language_defaults: OptimisationSettings = key(OptimisationSettings, "Defaults of the generators below.")
    language_text: ExtraTextSettings = key(ExtraTextSettings, "Additional text for lbl, mlbl, mnlm and sc-nlm.")
    describe: DescribeSettings = key(DescribeSettings, "Generated captions.")
    serve: ServeSettings = key(ServeSettings, "Search page.", title="Page and papers: serve, reproduce")
    reproduce: ReproduceSettings = key(ReproduceSettings, "Comparison with the tables of papers.")


OwnKeys = with_kinds(Keys, OWN.values())
"""All keys, with the section of every registered model and generator that has settings of its own."""


class Row(NamedTuple):
    """A key in config/default.yaml, with its description `sentence`.

    `path` has the keys of the sections that contain the key, followed by the key itself.
    """

    path: tuple[str, ...]
    default: str | None
    """The default as YAML. It is None for a required key, and for a section whose keys follow in rows below this row.
    It is `{}` for a section without such rows."""
    sentence: str
    title: str | None
    """The title of the group of keys that begins with this key, or None if no group begins with this key."""
    entry: bool
    """Whether the key belongs to the entries of a list or a mapping, such as `encoders`. config/default.yaml shows such
    keys as comments."""


def rows() -> Iterator[Row]:
    """Yield the rows of config/default.yaml in order."""
    shown: dict[type, str] = {}
    for name, field in Keys.model_fields.items():
        yield from _rows((name,), field, shown)
        for own in SHOWN_BELOW.get(name, ()):
            yield from _rows((own,), OwnKeys.model_fields[own], shown)


def _rows(path: tuple[str, ...], field: FieldInfo, shown: dict[type, str], entry: bool = False) -> Iterator[Row]:
    """Yield the row of the key at `path`, and the rows of the keys below it.

    `shown` maps the class of each section that was yielded before to the path of the section. New sections are added to
    `shown`. For a section that extends a class in `shown`, only the additional keys are yielded, and the description of
    the section lists the defaults that differ. `entry` says whether the key belongs to the entries of a list or a
    mapping of sections.
    """
    if kinds := _kinds(field.annotation):
        yield Row(path, _written(field.default), field.description or "", field.title, entry)
        if kinds[0] not in shown:
            shown |= dict.fromkeys(kinds, f"{'.'.join(path)}[]")
            yield from _kind_rows((*path[:-1], f"{path[-1]}[]"), kinds, shown)
        return
    is_section = _as_section(field.annotation) is not None
    below_path, section = _entries(path, field.annotation)
    sentence = field.description or ""
    below: dict[str, FieldInfo] = dict(section.model_fields) if section else {}
    if section:
        like = next((kind for kind in section.__mro__ if kind in shown), None)
        if like and issubclass(like, Section):
            below = {name: part for name, part in section.model_fields.items() if name not in like.model_fields}
            same = inherited(section, like)
            changed = [
                f"{name}: {_written(section.model_fields[name].default)}"
                for name in like.model_fields
                if name not in same
            ]
            defaults = f"Defaults as in {shown[like]}" + (f", but {', '.join(changed)}." if changed else ".")
            sentence = " ".join(filter(None, [sentence, defaults]))
        shown.setdefault(section, ".".join(below_path))
    default = None if field.is_required() else _written(field.default)
    if is_section:
        default = None if below else "{}"
    yield Row(path, default, sentence, field.title, entry)
    for name, part in sorted(below.items(), key=lambda named: not named[1].is_required()):
        yield from _rows((*below_path, name), part, shown, entry or not is_section)


def _kind_rows(path: tuple[str, ...], kinds: list[type[EncoderEntry]], shown: dict[type, str]) -> Iterator[Row]:
    """Yield a row for each of the `kinds` of an encoder's entry, and then a row for each key of these kinds.

    Kinds share a row if the default and the description of the key are the same. The description then begins with the
    names of these kinds, unless they are all kinds. `shown` maps the class of each section that was yielded before to
    the path of the section. New sections are added to `shown`.
    """
    variants: dict[tuple[str, str, str], list[type[EncoderEntry]]] = {}
    for kind in kinds:
        yield Row((*path, "kind"), _kind_name(kind), " ".join((kind.__doc__ or "").split()), None, True)
        for name, field in kind.model_fields.items():
            if name != "kind":
                default = "" if field.is_required() or field.default_factory else _written(field.default)
                variants.setdefault((name, default, field.description or ""), []).append(kind)
    for (name, _, sentence), having in sorted(variants.items(), key=lambda variant: variant[0][0] != "name"):
        first, *below = _rows((*path, name), having[0].model_fields[name], shown, True)
        names = ", ".join(map(_kind_name, having))
        yield first._replace(sentence=sentence if len(having) == len(kinds) else f"{names}: {sentence}")
        yield from below


def _kind_name(kind: type[EncoderEntry]) -> str:
    """Return the name of the kind of an entry, or module:Class for a class of the user."""
    literals = [value for part in get_args(kind.model_fields["kind"].annotation) for value in get_args(part)]
    return next((value for value in literals if isinstance(value, str)), "module:Class")


def _kinds(annotation: object) -> list[type[EncoderEntry]]:
    """Return the classes of entries in the annotation of a list of encoders, or [] for other annotations."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, EncoderEntry) else []
    return [kind for part in get_args(annotation) for kind in _kinds(part)]


def _entries(path: tuple[str, ...], annotation: object) -> tuple[tuple[str, ...], type[Section] | None]:
    """Return the path and the section of the keys below `path`.

    `annotation` is the type of the key at `path`. For a section, the path is `path`. For a list of sections, `[]` is
    appended to the last key of the path. For a mapping of sections, `NAME` is added to the path. For any other type,
    the section is None.
    """
    if get_origin(annotation) in (Annotated, Union, UnionType):
        found = [_entries(path, kind) for kind in get_args(annotation)]
        return next((one for one in found if one[1]), (path, None))
    kinds = [section for kind in get_args(annotation) if (section := _as_section(kind))]
    if kinds and get_origin(annotation) is dict:
        return (*path, "NAME"), kinds[0]
    if kinds and get_origin(annotation) is tuple:
        return (*path[:-1], f"{path[-1]}[]"), kinds[0]
    return path, _as_section(annotation)


def _as_section(annotation: object) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def inherited(section: type[Section], base: type[Section]) -> list[str]:
    """Return the keys of `base` that `section` has with the same default."""
    return [key for key, field in base.model_fields.items() if section.model_fields[key].default == field.default]


def _written(default: object) -> str:
    """Return a default as YAML on one line, or an empty text for a required key."""
    if default is PydanticUndefined:
        return ""
    text = yaml.safe_dump(to_jsonable_python(default), default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def default_yaml() -> str:
    """Return the text of config/default.yaml, which has every key with its default and a comment. The keys of an entry
    of a list, such as of an encoder, are commented out."""
    lines = [YAML_HEAD.rstrip()]
    for row in rows():
        if row.title:
            lines += ["", f"# --- {row.title} ".ljust(110, "-")]
        value = "" if row.default is None else f" {row.default}"
        mark = "# " if row.entry else ""
        key = f"{'  ' * (len(row.path) - 1)}{mark}{row.path[-1]}:{value}"
        lines.append(f"{key.ljust(COMMENT_COLUMN - 2)}  # {row.sentence}" if row.sentence else key)
    return "\n".join(lines) + "\n"


def default_path() -> Path:
    """Return the path of config/default.yaml, in the checkout or in the installed distribution."""
    checkout = Path(__file__).parents[2] / "config" / "default.yaml"
    installed = Path(sysconfig.get_path("data")) / "share" / "jointspace" / "config" / "default.yaml"
    return checkout if checkout.exists() else installed


if __name__ == "__main__":
    default_path().write_text(default_yaml(), encoding="utf-8")
    sys.stdout.write(f"{default_path()}\n")
