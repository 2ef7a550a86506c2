"""`build-index`: the bundle that a search needs, from the embeddings of one row."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.config.root import Index
    from pipeline.index.build import BuiltIndex
    from pipeline.index.build_gallery import BuiltGallery
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.parameters import Parameters


@click.command("build-index")
@options.manifest
@options.embeddings
@click.option("--model", "model_folder", type=options.FOLDER, required=True, help="Folder of the model that embedded.")
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-vocabulary` wrote."
)
@click.option(
    "--encoders", "encoders_root", type=options.FOLDER, required=True, help="Folder with one folder for each encoder."
)
@click.option("--parses", "parses_folder", type=options.FOLDER, help="Folder of `parse` shards; for rows of trees.")
@click.option("--labels", "labels_path", type=options.FILE, help="What `build-label-table` wrote, with --parses.")
@click.option("--parser", "parser_folder", type=options.FOLDER, help="What `train-parser` wrote, if that has parsed.")
@click.option("--on-disk", is_flag=True, help="As index.on_disk: for indices that are larger than memory.")
@options.config
@options.output("folder", "Folder of the bundle.")
def command(
    manifest_folder: Path,
    embeddings_folder: Path,
    model_folder: Path,
    vocabulary_path: Path,
    encoders_root: Path,
    parses_folder: Path | None,
    labels_path: Path | None,
    parser_folder: Path | None,
    on_disk: bool,
    config_path: Path | None,
    output: Path,
) -> None:
    """Index images and sentences, measure the indices, and put beside them what a query needs."""
    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.specs.stored import restore
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.carried_parsers import add_parser, find_carried_parser
    from pipeline.storage.embeddings import Embeddings, split_ids
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.reading import read_bytes
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.trees import ParseShards

    configured = config.load(config_path)
    settings = configured.index.model_copy(update={"on_disk": configured.index.on_disk or on_disk})
    manifest = Manifest(manifest_folder)
    embeddings = Embeddings(manifest, embeddings_folder)
    parameters = read_parameters(model_folder / "model.safetensors", MODEL)
    require_same("model", {str(embeddings_folder): embeddings.model, str(model_folder): parameters.fingerprint})
    vocabulary = read_vocabulary(vocabulary_path)["fingerprint"]
    require_same("vocabulary", {str(vocabulary_path): vocabulary, str(model_folder): parameters.details["vocabulary"]})
    model = restore(embeddings.registered, parameters.settings, parameters.tensors, model_folder)
    encoders = _read_encoders(model, parameters.details, model_folder, encoders_root)

    parse = None
    if parses_folder and labels_path:
        named = parser_folder, configured.parse.pipeline, Path(configured.weights_root)
        parse = find_carried_parser(parameters, ParseShards(manifest, parses_folder).open(0), labels_path, *named)

    ids, writer = split_ids(manifest, settings.splits), BundleWriter(output)
    gpu = find_gpu(configured.device)
    about = _add_indices(writer, embeddings, ids, settings, gpu)
    for modality, rows in ids.items():
        writer.add_table(f"{modality}.parquet", getattr(manifest, modality).take(rows))
    writer.add_parameters(model_folder)
    writer.add("vocabulary.json", read_bytes(vocabulary_path))
    for name in encoders:
        writer.add_parameters(encoders_root / name, f"encoders/{name}/")
    if parse:
        add_parser(writer, parse)

    inputs = {**embeddings.inputs, "model": parameters.fingerprint, "vocabulary": vocabulary}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    inputs |= {"parser": parse.digest} if parse and parse.digest else {}
    chosen = settings.model_dump(exclude=set() if embeddings.multi_vector else {"shortlist"})
    writer.commit(
        {
            "model": embeddings.row,
            "registered": embeddings.registered,
            "metric": embeddings.metric,
            "dim": embeddings.dim,
            **about,
            "splits": list(settings.splits),
            "data_root": str(manifest.root),
            "encoders": {name: encoder.settings for name, encoder in encoders.items()},
            **({"parse": parse.told} if parse else {}),
            "inputs": inputs,
            "fingerprint": fingerprint("bundle", 3, chosen, inputs),
        }
    )


def _read_encoders(
    model: Any, details: "Mapping[str, Any]", model_folder: Path, encoders_root: Path
) -> "dict[str, Parameters]":
    """The encoders that made the features of the model, and of its regions, by name."""
    import logging

    from pipeline.storage.provenance import encoders_of, read_own_encoders

    used = {"encoders": model.encoders, **({"regions": model.region_encoders} if model.multi_vector else {})}
    found = {}
    for key, names in used.items():
        origins = encoders_of(model_folder, details[key], names)
        found |= read_own_encoders(encoders_root, origins, model_folder)
        for name in origins.keys() - found.keys():
            logging.getLogger(__name__).warning(
                "the features of %s were imported, and no encoder of this run makes them: the index cannot be searched"
                " with photographs that it does not hold; see import-features --encoder", name,
            )  # fmt: skip
    return found


def _add_indices(
    writer: "BundleWriter", embeddings: "Embeddings", ids: dict, settings: "Index", gpu: Any
) -> dict[str, Any]:
    """The index of images and that of sentences, and which vectors are of which item; what the card says of them."""
    from tqdm import tqdm

    from pipeline.errors import UsageError
    from pipeline.index.build_gallery import build_gallery, queries_of
    from pipeline.index.ondisk import ListsFile
    from pipeline.index.requirements import Requirements
    from pipeline.index.shortlist import Shortlist
    from pipeline.index.vectors import evenly_spaced
    from pipeline.storage.cards import INDEXED

    several = embeddings.multi_vector
    if settings.on_disk and several:
        raise UsageError(f"{embeddings.row} has fragments, whose lists stay in memory; set index.on_disk to false")
    requirements = Requirements(**settings.model_dump(exclude={"splits", "shortlist", "on_disk"}))
    shortlist = Shortlist(**settings.shortlist.model_dump())
    kind, cards, outlines = "fragments" if several else "global", {}, {}
    for modality, other in (("images", "sentences"), ("sentences", "images")):
        outlines[modality] = embeddings.outline(modality, ids[modality])
        asking = ids[other][evenly_spaced(len(ids[other]), queries_of(several))]
        name = INDEXED[kind][modality]
        lists = ListsFile(writer.place_for(f"{name}.lists"), f"{name}.lists") if settings.on_disk else None
        built = build_gallery(
            modality, embeddings.rows_of(modality, ids[modality]), outlines[modality],
            embeddings.read(other, asking), embeddings.comparison, requirements, shortlist,
            lambda items, what: tqdm(items, what, disable=None), lists, gpu,
        )  # fmt: skip
        if lists:
            writer.adopt(lists.name)
        _put(writer, embeddings.row, name, built.index)
        cards[name] = built.card()
        if built.cost:
            _tell_cost(embeddings.row, modality, built, settings.recall_floor)
    if several:
        writer.add_outlines(outlines)
    return {"kind": kind, **({"score": embeddings.score} if several else {}), **cards}


def _tell_cost(row: str, modality: str, built: "BuiltGallery", floor: float) -> None:
    """What the shortlist costs, for a person, and what to do where that is too much."""
    import logging

    cost, log = built.cost, logging.getLogger(__name__)
    log.info(
        "%s: %s finds %.3f of the ten best %s in %.1f ms, %.1f ms with everything", row,
        "a shortlist" if cost.shortlist else "scoring all", cost.recall, modality, 1000 * cost.seconds,
        1000 * cost.exact_seconds,
    )  # fmt: skip
    if cost.recall < floor:
        log.warning(
            "%s: that is below index.recall_floor %g; lengthen index.shortlist, or raise index.exact_limit to %d",
            row, floor, built.index.card.count,
        )  # fmt: skip


def _put(writer: "BundleWriter", row: str, name: str, built: "BuiltIndex") -> None:
    """An index of the bundle, and how it was chosen where it was."""
    import logging

    from pipeline.report.figures import draw_tradeoff

    writer.add(f"{name}.faiss", built.data)
    if built.tradeoff:
        writer.add_json(f"{name}.tradeoff.json", built.tradeoff)
        writer.add(f"{name}.tradeoff.svg", draw_tradeoff(built.tradeoff, f"{row}, {name}"))
    logging.getLogger(__name__).info(
        "%s: %d %s in %s, index recall@10 %.3f, %.0f queries/s",
        row, built.card.count, name, built.card.factory, built.card.recall, built.card.queries_per_second,
    )  # fmt: skip
