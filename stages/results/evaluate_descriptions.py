"""`evaluate-descriptions`: how similar generated sentences are to people's, and the perplexity of these."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.boxes import label_names
from stages.generators import space_of

if TYPE_CHECKING:
    from stages.inputs import DescribedImages


def evaluate_descriptions(run: Run, job: Job, generator: str, subject: str) -> None:
    """Judge descriptions of a split by its sentences; of SPLIT.boxes, by what people wrote for these
    (`describe.region_texts`), or else by the noun phrases that name them."""
    import logging
    from dataclasses import asdict

    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.generate.metrics import METRICS, judge, variety
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import write_measured
    from pipeline.text.tokens import make_analyzer
    from stages.boxes import read_naming_phrases, read_region_texts, region_texts_path
    from stages.inputs import read_described

    settings, layout, manifest = run.config, run.layout, run.manifest
    split, _, of = subject.partition(".")
    path = layout.descriptions(generator, subject).commit
    described, parameters = read_record(path), run.generator(generator)
    restored = settings.generator(generator).spec.load().from_parts(parameters.settings, parameters.tensors)
    found = read_described(run, restored.encoders, (split,))
    analyze = make_analyzer(found.vocabulary.settings)
    if of and (given := region_texts_path(settings)):
        texts = read_region_texts(manifest, given)
        own = (texts.get((one["image_id"], tuple(one["box"])), []) for one in described["images"])
        references = [list(map(analyze, each)) for each in own]
    elif of:
        images = described["images"], settings, manifest, layout.parses.folder
        references = read_naming_phrases(*images, analyze)
    else:
        references = _list_sentences(described["images"], manifest, found, split, analyze)
    judged = [pair for pair in zip(described["images"], references, strict=True) if pair[0]["sentences"] and pair[1]]
    if not judged:
        raise UsageError(f"no sentence or phrase refers to what {path} describes; correct phrases.names, or parse")
    first = [one["sentences"][0] for one, _ in judged]
    candidates = [one["text"].split(" ") for one in first]

    judgement, statistics = judge(candidates, [own for _, own in judged], settings.describe.meteor)
    perplexity = None
    if hasattr(restored, "perplexities") and not of:
        perplexity = _measure_perplexity(run, generator, restored, found, split)

    about = {"generator": generator, "of": of or "images", "split": split}
    value = {
        **about,
        "n_images": len({one["image_id"] for one, _ in judged}),
        "n_boxes": len(judged) if of else None,
        "n_references": sum(len(own) for _, own in judged),
        "tokenisation": "words of the token vocabulary's analyzer",
        **asdict(judgement),
        **asdict(variety(candidates, [one["verbatim"] for one in first])),
        "perplexity": perplexity,
    }
    arrays = {"images": np.array([one["image_id"] for one, _ in judged]), **vars(statistics)} if statistics else {}
    write_measured(job.path, value, "statistics", arrays, job.provenance)
    log = logging.getLogger(__name__)
    measured = ", ".join(f"{name} {value[name]:.1f}" for name in METRICS if value[name] is not None)
    log.info("%s on %s of %s: %s%.1f %% copied", *about.values(), measured and f"{measured}, ", value["copied"])
    for reason in dict.fromkeys(judgement.not_measured.values()):
        names = [name for name, own in judgement.not_measured.items() if own == reason]
        log.info("not measured: %s (%s)", ", ".join(names), reason)


def _list_sentences(
    images: list[dict], manifest: Any, found: "DescribedImages", split: str, analyze: Callable
) -> list[list[list[str]]]:
    """The sentences, as words, of each of the described `images`."""
    by_image: dict[int, list[list[str]]] = {}
    for sentence_id, text in zip(found.pairs[split].names, found.texts[split], strict=True):
        by_image.setdefault(int(manifest.sentence_images[sentence_id]), []).append(analyze(text))
    return [by_image.get(one["image_id"], []) for one in images]


def _measure_perplexity(run: Run, name: str, generator: Any, found: "DescribedImages", split: str) -> Any:
    """The perplexities of the split's sentences."""
    from stages.generators import hold_out

    generator.to(run.device)
    return generator.perplexities(hold_out(run, name, found.pairs[split], found.texts[split], found.vocabulary))


def _keys(config, generator: str, subject: str) -> dict:
    if subject.endswith(".boxes"):
        return {"names": config.phrases.names, "meteor": config.describe.meteor}
    return {"seed": config.seed, "text": config.language_text.model_dump(), "meteor": config.describe.meteor}


def _reads(config, layout, generator: str, subject: str) -> Inputs:
    found: dict = {
        "manifest": layout.manifest,
        "generator": layout.generator(generator),
        "descriptions": layout.descriptions(generator, subject),
        "vocabulary": layout.token_vocabulary,
        "tokens": layout.sentences("tokens"),
        **{f"features/{name}": layout.features(name) for name in config.generator(generator).encoders},
    }
    if subject.endswith(".boxes"):
        parses = {} if config.describe.region_texts else {"parses": layout.parses}
        return found | parses | label_names(config)
    found |= {"space": space} if (space := space_of(config, layout, generator)) else {}
    tagged = config.generator(generator).spec.treebank
    return found | ({"treebank": Outside(Path(config.language_text.treebank))} if tagged else {})


STAGE = Stage(
    evaluate_descriptions,
    version=3,
    gpu=True,
    names=("generator", "subject"),
    choices=lambda config: config.descriptions(),
    wanted=lambda config: config.descriptions(config.describe.splits),
    keys=_keys,
    reads=_reads,
    writes=lambda layout, *names: layout.description_evaluation(*names),
)
