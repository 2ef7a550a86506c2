"""`evaluate-descriptions`: how near generated sentences come to people's, and how likely it finds these."""

from pathlib import Path

import click

from stages import options


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
    bundle_folder: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Judge DESCRIPTIONS, what `describe` wrote of a split, by that split's own sentences."""
    import logging
    from dataclasses import asdict

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.language.material import HeldOut
    from pipeline.language.metrics import judge, variety
    from pipeline.language.space import JointSpace
    from pipeline.models import generator_class
    from pipeline.storage.atomic import publish_json, read_json
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.parameters import MODEL, read_parameters
    from pipeline.text.tokens import make_analyzer
    from stages.inputs import read_described, read_language_text

    described, settings = read_json(descriptions_path), config.load(config_path)
    split, parameters = described["split"], read_parameters(generator_folder / "model.safetensors", MODEL)
    if split is None:
        raise UsageError(f"{descriptions_path} is of no split; describe one (--split), to be judged by its sentences")
    made_by = {str(descriptions_path): described["inputs"]["generator"], str(generator_folder): parameters.fingerprint}
    require_same("generator", made_by)
    generator = generator_class(described["generator"]).from_parts(parameters.settings, parameters.tensors)
    found = read_described(manifest_folder, features_root, tokens_folder, vocabulary_path, generator.encoders, (split,))
    require_same(
        "manifest",
        {str(descriptions_path): described["inputs"]["manifest"], str(manifest_folder): found.manifest.fingerprint},
    )
    analyze, references = make_analyzer(found.vocabulary.settings), {}
    for sentence_id, text in zip(found.pairs[split].names, found.texts[split], strict=True):
        references.setdefault(int(found.manifest.sentence_images[sentence_id]), []).append(analyze(text))
    judged = [one for one in described["images"] if one["image_id"] in references and one["sentences"]]
    first = [one["sentences"][0] for one in judged]
    candidates = [one["text"].split(" ") for one in first]

    judgement = judge(candidates, [references[one["image_id"]] for one in judged], settings.describe.meteor)
    perplexity = None
    if hasattr(generator, "perplexities"):
        space = JointSpace(Bundle(bundle_folder)) if bundle_folder else None
        treebank = read_language_text(settings).treebank
        parts = (found.pairs[split], found.texts[split], found.vocabulary, space, treebank, settings.seed)
        perplexity = generator.perplexities(HeldOut(*parts))

    about = {"generator": described["generator"], "split": split}
    value = {
        **about,
        "n_images": len(judged),
        "tokenisation": "words of the token vocabulary's analyzer",
        **asdict(judgement),
        **asdict(variety(candidates, [one["verbatim"] for one in first])),
        "perplexity": perplexity,
        "inputs": described["inputs"],
        "fingerprint": fingerprint("description evaluation", 1, about, {"descriptions": described["fingerprint"]}),
    }
    publish_json(output, value)
    logging.getLogger(__name__).info(
        "%s on %s: BLEU %.1f %.1f %.1f %.1f, ROUGE-L %.1f, CIDEr %.1f, %.1f %% copied",
        described["generator"], split, judgement.bleu_1, judgement.bleu_2, judgement.bleu_3, judgement.bleu_4,
        judgement.rouge_l, judgement.cider, value["copied"],
    )  # fmt: skip
