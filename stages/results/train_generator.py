"""`train-generator`: a generator of descriptions from stored features and training sentences."""

from pathlib import Path
from typing import Any

import click

from stages import options


@click.command("train-generator")
@click.argument("name")
@options.manifest
@options.features
@options.tokens
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-token-vocabulary` wrote."
)
@click.option("--index", "bundle_folder", type=options.FOLDER, help="Folder that `build-index` wrote: the joint space.")
@click.option(
    "--snippets", "snippets_paths", type=options.FILE, multiple=True, help="What `align` wrote of train, and of dev."
)
@options.regions
@options.config
@options.output("folder", "Folder of the model; a killed training goes on from the checkpoints in it.")
def command(
    name: str,
    manifest_folder: Path,
    features_root: Path,
    tokens_folder: Path | None,
    vocabulary_path: Path,
    bundle_folder: Path | None,
    snippets_paths: tuple[Path, ...],
    regions_root: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Train NAME, a registered generator."""
    import logging

    from pipeline import config
    from pipeline.device import find_device, find_gpu
    from pipeline.errors import UsageError
    from pipeline.generate.material import Material
    from pipeline.generate.space import JointSpace
    from pipeline.models.linear.views import ImageView
    from pipeline.precision import choose_precision
    from pipeline.specs.generators import GENERATORS, generator_spec
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parameters import MODEL, write_parameters
    from pipeline.storage.places import require_output
    from pipeline.storage.provenance import join_origins
    from stages.inputs import follow_training, read_described, read_language_text

    settings, spec = config.load(config_path), generator_spec(name)
    own = settings.section(spec)
    require_output(output / "model.safetensors", {"generator": name})
    if spec.regions != bool(snippets_paths):
        known = " and ".join(one.name for one in GENERATORS if one.regions)
        raise UsageError(f"{known} learns from --snippets with --regions, other generators from sentences")
    device = find_device(settings.device)
    precision = choose_precision(getattr(own, "precision", "float32"), device)
    encoders = tuple(encoder.name for encoder in settings.encoders)
    found = read_described(manifest_folder, features_root, tokens_folder, vocabulary_path, encoders, ("train", "dev"))
    pairs, inputs = dict(found.pairs), dict(found.inputs)
    if snippets_paths:
        pairs, digests = _read_snippets(snippets_paths, found, regions_root, features_root)
        inputs |= digests
    dims = tuple(rows.shape[1] for rows in pairs["train"].features.values())
    view = ImageView(encoders, dims, settings.image_view.normalise)
    bundle = Bundle(bundle_folder) if bundle_folder else None
    if bundle:
        join_origins([(str(features_root), found.encoders), (str(bundle_folder), bundle.model().details["encoders"])])
    space = JointSpace(bundle, find_gpu(settings.device)) if bundle else None
    extra, treebank = read_language_text(settings) if spec.text else ([], None)
    kept = own.model_dump(exclude={"snippets", "checkpoint_seconds", "precision"})
    about = [name, kept, str(precision), view.steps, settings.seed]
    about += [fingerprint("text", 1, [extra, treebank])] if extra or treebank else []
    inputs |= {"space": space.fingerprint} if space else {}
    digest = fingerprint("generator", 2, about, inputs)
    with follow_training(name, own, output / "checkpoints", digest) as (
        checkpoint,
        after_step,
    ):
        learned = spec.load().learn(
            Material(
                view,
                **pairs,
                texts=found.texts,
                vocabulary=found.vocabulary,
                space=space,
                extra=extra,
                treebank=treebank,
                settings=own,
                seed=settings.seed,
                precision=precision,
                checkpoint=checkpoint,
                after_step=after_step,
                device=device,
            )  # fmt: skip
        )

        write_parameters(
            output / "model.safetensors",
            MODEL,
            learned.generator.tensors(),
            settings=learned.generator.settings(),
            fingerprint=digest,
            details={
                "generator": name,
                "encoders": found.encoders,
                "vocabulary": found.vocabulary_fingerprint,
                "space": space.fingerprint if learned.generator.in_space else None,
                "inputs": inputs,
                "training_log": learned.log,
            },
        )
    logging.getLogger(__name__).info("%s on %d sentences: %s", name, learned.log["sentences"], learned.log["chosen"])


def _read_snippets(
    paths: tuple[Path, ...], found: Any, regions_root: Path | None, features_root: Path
) -> tuple[dict, dict[str, str]]:
    """The pairs of regions with snippets of their images' sentences, and the fingerprints of `paths`."""
    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.generate.snippets import Snippet, region_pairs
    from pipeline.storage.alignments import read_alignments
    from pipeline.storage.fingerprint import require_same
    from stages.boxes import read_regions

    if regions_root is None:
        raise UsageError("--snippets are of regions; give what extract-regions wrote as --regions")
    snippets, inputs = [], {}
    for number, path in enumerate(paths):
        segments, sidecar = read_alignments(path)
        for what, own in (("manifest", found.manifest.fingerprint), ("vocabulary", found.vocabulary_fingerprint)):
            held = sidecar.details["inputs"][what] if what == "manifest" else sidecar.details[what]
            require_same(what, {str(path): held, "what is given beside it": own})
        snippets += [Snippet(*(one[name] for name in Snippet._fields)) for one in segments]
        inputs[f"snippets/{number}"] = sidecar.fingerprint
    image_id = np.unique(np.array([snippet.image_id for snippet in snippets], np.int64))
    regions = read_regions(found.manifest, regions_root, found.encoders, features_root, image_id)
    return region_pairs(snippets, regions, found.manifest.splits, found.vocabulary), inputs
