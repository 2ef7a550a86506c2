"""All keys of a configuration, in the order of config/default.yaml, which `python -m pipeline.config.keys` writes."""

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
"""The encoder of the demo, which needs no weights."""
OWN = {spec.key: spec for spec in (*MODELS, *GENERATORS) if spec.section}
"""Key of the configuration -> the registered model or generator whose settings it holds."""
SHOWN_BELOW = {
    "fit": [spec.key for spec in MODELS if spec.section and spec.made_by == "fit"],
    "train_defaults": [spec.key for spec in MODELS if spec.section and spec.defaults == "train_defaults"],
    "language_defaults": [spec.key for spec in GENERATORS],
}
"""Key -> the sections of registered models and generators that config/default.yaml shows below it."""
COMMENT_COLUMN = 40
"""Column of the comments in config/default.yaml."""
YAML_HEAD = """\
# Every key of jointspace with its default: the demo. A configuration of your own names only what differs:
#   snakemake all --cores 2 --configfile my.yaml
# Unknown keys are errors; lists are replaced as a whole, mappings are merged. By python -m pipeline.config.keys.
"""


class ClusterSettings(Section):
    """A Dask cluster."""

    workers: Positive = key(2, "number of workers")
    options: dict[str, Any] = key(
        {}, "options of dask's LocalCluster, dask_jobqueue's SLURMCluster, dask_kubernetes' KubeCluster"
    )


class Keys(Section):
    """All keys, without the sections of registered models and generators."""

    name: Name = key("demo", "results are in results_root/name", title="The run")
    data_root: Place = key("results/demo-collection", "folder of the photos and their texts")
    weights_root: Place = key(".", "folder of weight files")
    results_root: Place = key("results", "folder of all runs")
    models: Names = key(
        ("cca", "ncca", "sae"), "models, variants and ensembles; or {name: ..., and the keys of a variant}"
    )
    seed: Seed = key(0, "for all random choices; at most 4294967294")
    shard_size: Positive = key(4096, "images per shard")
    parts: Annotated[Positive, Field(le=99_999)] = key(
        1, "jobs that share the shards of a stage: 1 on one machine, one per node on a cluster"
    )
    device: Device = key("auto", "where tensors are computed: auto (a GPU if there is one) | cpu | cuda | cuda:N")
    workers: Positive = key(1, "processes that share the shards of a job; at least one per GPU")
    scheduler: Annotated[str, Field(pattern=SCHEDULER)] | None = key(
        None, "null: this machine | local, slurm, kubernetes: a Dask cluster | tcp://HOST:PORT"
    )
    cluster: ClusterSettings = key(ClusterSettings, "the Dask cluster that is started for each job")
    demo: DemoSettings = key(DemoSettings, title="Collection: make-demo, ingest")
    collection: CollectionSettings = key(CollectionSettings)
    encoders: Annotated[tuple[ImageEncoderEntry, ...], Field(min_length=1)] = key(
        (DEMO_ENCODER,),
        "image encoders, whose features are concatenated",
        title="Images: prepare-encoder, extract, extract-regions, finetune",
    )  # fmt: skip
    query_encoders: tuple[ImageEncoderEntry, ...] = key((), "encoders for queries only, see made_by")
    extract: ExtractSettings = key(ExtractSettings)
    regions: RegionsSettings = key(RegionsSettings)
    finetune: FinetuneSettings = key(FinetuneSettings, "makes the encoders whose `weights` are finetuned")
    text: TermKeys = key(
        TermKeys,
        "tf-idf; an entry of text_encoders may override these keys",
        title="Text: prepare-encoder, encode-sentences",
    )
    text_encoders: Annotated[tuple[TextEncoderEntry, ...], Field(min_length=1)] = key(
        ({"name": "tfidf", "kind": "tf-idf", "normalise": []},),
        "text encoders, whose vectors are concatenated",
    )
    query_text_encoders: tuple[TextEncoderEntry, ...] = key((), "text encoders for queries only, see made_by")
    image_view: ImageViewSettings = key(ImageViewSettings, title="Linear models: accumulate, fit")
    fit: FitSettings = key(FitSettings, "values to try on dev")
    parse: ParseSettings = key(ParseSettings, title="Neural models: parse, encode-tokens, train")
    tokens: TokenVocabularySettings = key(TokenVocabularySettings, "")
    word_vectors: WordVectorsSettings = key(WordVectorsSettings)
    train_defaults: TrainSettings = key(TrainSettings, "defaults of the models below; bow and gru have no other keys")
    auxiliary: AuxiliarySettings = key(
        AuxiliarySettings, title="Titles, tags and descriptions: encode-documents, accumulate, study"
    )
    documents: dict[Name, DocumentsSettings] = key(
        {
            "all": {"fields": ["title", "tags", "description"]},
            "title": {"fields": ["title"]},
            "tags": {"fields": ["tags"]},
            "description": {"fields": ["description"]},
        },
        "weak texts by name: the fields to join, and where they come from; the last three are for Table 3",
    )
    transfer: TransferSettings = key(TransferSettings, "training with auxiliary pairs; lists are tried on dev")
    study: StudySettings = key(StudySettings)
    variants: dict[Name, Variant] = key(
        {"sae": {"model": "ncca", "training": "sae"}},
        "NAME: {model: a registered model, any of its own settings, any of the keys below}; sae is the Stacked"
        " Auxiliary Embedding, which learns from the weak texts too",
        title="Variants and ensembles: fit-hubness, align, embed-phrases, rank-phrases",
    )
    ensembles: dict[Name, EnsembleSettings] = key({}, "NAME: {members: [models], weights: ...}")
    hubness: HubnessSettings = key(HubnessSettings, "hubness correction: values to try on dev")
    align: AlignSettings = key(AlignSettings)
    phrases: PhrasesSettings = key(PhrasesSettings)
    index: IndexSettings = key(IndexSettings, title="Results: build-index, evaluate")
    evaluate: EvaluateSettings = key(EvaluateSettings)
    generators: tuple[Name, ...] = key(
        (),
        "nearest | mrnn | mrnn-regions | ranked-snippets | lbl | mlbl | mnlm | sc-nlm: each learns, describes, is"
        " judged",
        title="Generated captions: train-generator, describe, evaluate-descriptions",
    )
    generator_variants: dict[Name, GeneratorVariant] = key(
        {}, "NAME: {generator: one of these, any of its own settings, any of the keys below}"
    )
    language_defaults: OptimisationSettings = key(OptimisationSettings, "defaults of the generators below")
    language_text: ExtraTextSettings = key(ExtraTextSettings, "more text for lbl, mlbl, mnlm and sc-nlm")
    describe: DescribeSettings = key(DescribeSettings)
    serve: ServeSettings = key(ServeSettings, title="Page and papers: serve, reproduce")
    reproduce: ReproduceSettings = key(ReproduceSettings)


OwnKeys = with_kinds(Keys, OWN.values())
"""All keys, with the section of every registered model and generator that has settings of its own."""


class Row(NamedTuple):
    """A key in config/default.yaml."""

    path: tuple[str, ...]
    default: str | None
    """The default as YAML, or None for a section and for a key that is required."""
    sentence: str
    title: str | None
    """The title of the group that begins with this key."""
    entry: bool
    """Whether it is a key of an entry, of a list or of a mapping of names, that is not among the defaults."""


def rows() -> Iterator[Row]:
    """Yield all keys in their order."""
    shown: dict[type, str] = {}
    for name, field in Keys.model_fields.items():
        yield from _rows((name,), field, shown)
        for own in SHOWN_BELOW.get(name, ()):
            yield from _rows((own,), OwnKeys.model_fields[own], shown)


def _rows(path: tuple[str, ...], field: FieldInfo, shown: dict[type, str], entry: bool = False) -> Iterator[Row]:
    """Yield a key and the keys below it.

    `shown` are the sections that have been shown, with their paths. A section that extends one of them shows only the
    keys that it adds, and its sentence lists the defaults that differ.
    """
    if kinds := _kinds(field.annotation):
        yield Row(path, _written(field.default), field.description or "", field.title, entry)
        if kinds[0] not in shown:
            shown |= dict.fromkeys(kinds, f"{'.'.join(path)}[]")
            yield from _kind_rows((*path[:-1], f"{path[-1]}[]"), kinds, shown)
        return
    is_section = _as_section(field.annotation) is not None
    place, section = _entries(path, field.annotation)
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
            alike = f"defaults as {shown[like]}" + (f", but {', '.join(changed)}" if changed else "")
            sentence = "; ".join(filter(None, [sentence, alike]))
        shown.setdefault(section, ".".join(place))
    default = None if field.is_required() else _written(field.default)
    if is_section:
        default = None if below else "{}"
    yield Row(path, default, sentence, field.title, entry)
    for name, part in sorted(below.items(), key=lambda named: not named[1].is_required()):
        yield from _rows((*place, name), part, shown, entry or not is_section)


def _kind_rows(path: tuple[str, ...], kinds: list[type[EncoderEntry]], shown: dict[type, str]) -> Iterator[Row]:
    """Yield the kinds of an entry, and each key once. Its sentence begins with the kinds that have it."""
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
    """Return the name of the kind of an entry; module:Class for a class of the user's."""
    literals = [value for part in get_args(kind.model_fields["kind"].annotation) for value in get_args(part)]
    return next((value for value in literals if isinstance(value, str)), "module:Class")


def _kinds(annotation: object) -> list[type[EncoderEntry]]:
    """Return the classes of entries in the annotation of a list of encoders; nothing for other annotations."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, EncoderEntry) else []
    return [kind for part in get_args(annotation) for kind in _kinds(part)]


def _entries(path: tuple[str, ...], annotation: object) -> tuple[tuple[str, ...], type[Section] | None]:
    """Return the path and the section of the entries of a list or of a mapping of names, if these are sections."""
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
    """Return a default as YAML on one line; empty for a required key."""
    if default is PydanticUndefined:
        return ""
    text = yaml.safe_dump(to_jsonable_python(default), default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def default_yaml() -> str:
    """Return the text of config/default.yaml. Keys of entries stand in it as comments."""
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
