"""`evaluate-descriptions`: how near generated sentences come to people's, and how likely it finds these."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from pipeline.config import Config


@click.command("evaluate-descriptions")
@click.argument("descriptions_path", metavar="DESCRIPTIONS", type=options.FILE)
@options.manifest
@click.option(
    "--generator", "generator_folder", type=options.FOLDER, required=True, help="Folder that `train-generator` wrote."
)
@options.features
@options.tokens
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-token-vocabulary` wrote."
)
@click.option("--parses", "parses_folder", type=options.FOLDER, help="What `parse` wrote; for descriptions of boxes.")
@click.option("--index", "bundle_folder", type=options.FOLDER, help="Bundle with the joint space of the generator.")
@options.config
@options.output("file", "The evaluation, a JSON file.")
def command(
    descriptions_path: Path,
    manifest_folder: Path,
    generator_folder: Path,
    features_root: Path,
    tokens_folder: Path | None,
    vocabulary_path: Path,
    parses_folder: Path | None,
    bundle_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Judge DESCRIPTIONS, what `describe` wrote of a split, by its sentences; of boxes, by phrases that name these."""
    import logging
    from dataclasses import asdict

    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.errors import UsageError
    from pipeline.generate.material import HeldOut
    from pipeline.generate.metrics import METRICS, judge, variety
    from pipeline.generate.space import JointSpace
    from pipeline.specs.generators import generator_spec
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.forms import Descriptions
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import require_origins
    from pipeline.storage.records import read_record
    from pipeline.text.tokens import make_analyzer
    from stages.inputs import read_described, read_language_text

    described, settings = read_record(descriptions_path, Descriptions), config.load(config_path)
    split, parameters = described["split"], read_parameters(generator_folder / "model.safetensors", MODEL)
    require_output(output, {name: described[name] for name in ("generator", "of", "split")})
    if split is None:
        raise UsageError(f"{descriptions_path} is of no split; describe one (--split), to be judged by its sentences")
    made_by = {str(descriptions_path): described["inputs"]["generator"], str(generator_folder): parameters.fingerprint}
    require_same("generator", made_by)
    generator = generator_spec(described["generator"]).load().from_parts(parameters.settings, parameters.tensors)
    found = read_described(manifest_folder, features_root, tokens_folder, vocabulary_path, generator.encoders, (split,))
    require_same(
        "manifest",
        {str(descriptions_path): described["inputs"]["manifest"], str(manifest_folder): found.manifest.fingerprint},
    )
    require_origins(parameters.details["encoders"], generator_folder, found.origins)
    analyze, of_boxes = make_analyzer(found.vocabulary.settings), described.get("of") == "boxes"
    if of_boxes:
        references, parsed = _read_phrases(described["images"], settings, found.manifest, parses_folder, analyze)
    else:
        references, parsed = _list_sentences(described["images"], found, split, analyze), {}
    judged = [pair for pair in zip(described["images"], references, strict=True) if pair[0]["sentences"] and pair[1]]
    if not judged:
        raise UsageError(f"people say nothing of what {descriptions_path} describes; correct phrases.names, or parse")
    first = [one["sentences"][0] for one, _ in judged]
    candidates = [one["text"].split(" ") for one in first]

    judgement = judge(candidates, [own for _, own in judged], settings.describe.meteor)
    perplexity = None
    if hasattr(generator, "perplexities") and not of_boxes:
        gpu = find_gpu(settings.device)
        space = JointSpace(Bundle(bundle_folder), gpu) if bundle_folder else None
        if space and parameters.details["space"]:
            of_space = {str(generator_folder): parameters.details["space"], str(bundle_folder): space.fingerprint}
            require_same("joint space", of_space)
        if gpu is not None:
            generator.to(gpu)
        treebank = read_language_text(settings).treebank
        parts = (found.pairs[split], found.texts[split], found.vocabulary, space, treebank, settings.seed)
        perplexity = generator.perplexities(HeldOut(*parts))

    about = {"generator": described["generator"], "of": "boxes" if of_boxes else "images", "split": split}
    value = {
        **about,
        "n_images": len({one["image_id"] for one, _ in judged}),
        "n_boxes": len(judged) if of_boxes else None,
        "n_references": sum(len(own) for _, own in judged),
        "tokenisation": "words of the token vocabulary's analyzer",
        **asdict(judgement),
        **asdict(variety(candidates, [one["verbatim"] for one in first])),
        "perplexity": perplexity,
        "inputs": {**described["inputs"], **parsed},
        "fingerprint": fingerprint(
            "description evaluation", 1, about, {**parsed, "descriptions": described["fingerprint"]}
        ),
    }
    publish_record(output, value)
    log = logging.getLogger(__name__)
    measured = ", ".join(f"{name} {value[name]:.1f}" for name in METRICS if value[name] is not None)
    log.info("%s on %s of %s: %s%.1f %% copied", *about.values(), measured and f"{measured}, ", value["copied"])
    for reason in dict.fromkeys(judgement.not_measured.values()):
        names = [name for name, own in judgement.not_measured.items() if own == reason]
        log.info("not measured: %s (%s)", ", ".join(names), reason)


def _list_sentences(images: list[dict], found: Any, split: str, analyze: Callable) -> list[list[list[str]]]:
    """The sentences, as words, of each of the described `images`."""
    by_image: dict[int, list[list[str]]] = {}
    for sentence_id, text in zip(found.pairs[split].names, found.texts[split], strict=True):
        by_image.setdefault(int(found.manifest.sentence_images[sentence_id]), []).append(analyze(text))
    return [by_image.get(one["image_id"], []) for one in images]


def _read_phrases(
    boxes: list[dict], settings: "Config", manifest: Any, parses_folder: Path | None, analyze: Callable
) -> tuple[list[list[list[str]]], dict[str, str]]:
    """The noun phrases, as words, that name each of the described `boxes`, and what these were made from."""
    from pipeline.errors import UsageError
    from stages.boxes import read_naming_phrases

    if parses_folder is None:
        raise UsageError("boxes are judged by the noun phrases that name them; give what parse wrote as --parses")
    return read_naming_phrases(boxes, settings, manifest, parses_folder, analyze)
