"""`evaluate-descriptions`: how similar generated sentences are to people's, and the perplexity of these."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import generator_inputs, label_names, named, region_texts_path, text_files

if TYPE_CHECKING:
    from stages.generators import DescribedImages


def evaluate_descriptions(run: Run, job: Job, generator: str, subject: str) -> None:
    """Score generated captions of a split or of SPLIT.boxes against texts that people wrote."""
    import logging
    from dataclasses import asdict

    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.generate.metrics import METRICS, judge, variety
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import write_measured
    from pipeline.text.tokens import make_analyzer
    from stages.generators import hold_out, read_described

    split, _, kind = subject.partition(".")
    path = run.layout.descriptions(generator, subject).commit
    described, stored = read_record(path)["images"], run.generator(generator)
    restored = run.config.generator(generator).spec.load().from_parts(stored.settings, stored.tensors)
    people = read_described(run, restored.encoders, (split,))
    analyze = make_analyzer(people.vocabulary.settings)
    if kind:
        references = _read_box_texts(run, described, analyze)
    else:
        references = _list_sentences(run, described, people, split, analyze)
    judged = [pair for pair in zip(described, references, strict=True) if pair[0]["sentences"] and pair[1]]
    if not judged:
        raise UsageError(
            f"no caption or phrase names what {path} describes; correct phrases.names, or parse the captions"
        )
    best = [image["sentences"][0] for image, _ in judged]
    candidates = [sentence["text"].split(" ") for sentence in best]
    judgement, statistics = judge(candidates, [texts for _, texts in judged], run.config.describe.meteor)
    perplexity = None
    if hasattr(restored, "perplexities") and not kind:
        restored.to(run.device)
        held_out = hold_out(run, generator, people.pairs[split], people.texts[split], people.vocabulary)
        perplexity = restored.perplexities(held_out)

    about = {"generator": generator, "of": kind or "images", "split": split}
    value = {
        **about,
        "n_images": len({image["image_id"] for image, _ in judged}),
        "n_boxes": len(judged) if kind else None,
        "n_references": sum(len(texts) for _, texts in judged),
        "tokenisation": "words of the token vocabulary's analyzer",
        **asdict(judgement),
        **asdict(variety(candidates, [sentence["verbatim"] for sentence in best])),
        "perplexity": perplexity,
    }
    image_id = np.array([image["image_id"] for image, _ in judged])
    arrays = {"images": image_id, **vars(statistics)} if statistics else {}
    write_measured(job.path, value, "statistics", arrays, job.provenance)
    log = logging.getLogger(__name__)
    measured = "".join(f"{name} {value[name]:.1f}, " for name in METRICS if value[name] is not None)
    log.info("%s on %s of %s: %s%.1f %% copied", *about.values(), measured, value["copied"])
    for reason in dict.fromkeys(judgement.not_measured.values()):
        names = [name for name, why in judgement.not_measured.items() if why == reason]
        log.info("not measured: %s (%s)", ", ".join(names), reason)


def _read_box_texts(run: Run, boxes: list[dict], analyze: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """What people wrote for each of the described `boxes`, or the noun phrases that name it, as words."""
    from stages.boxes import read_naming_phrases, read_region_texts

    path = region_texts_path(run.config)
    if path is None:
        return read_naming_phrases(run, boxes, analyze)
    texts = read_region_texts(run, path)
    return [list(map(analyze, texts.get((box["image_id"], tuple(box["box"])), []))) for box in boxes]


def _list_sentences(
    run: Run, images: list[dict], people: "DescribedImages", split: str, analyze: Callable[[str], list[str]]
) -> list[list[list[str]]]:
    """The sentences, as words, of each of the described `images`."""
    owners = run.manifest.sentence_images
    by_image: dict[int, list[list[str]]] = {}
    for sentence_id, text in zip(people.pairs[split].names, people.texts[split], strict=True):
        by_image.setdefault(int(owners[sentence_id]), []).append(analyze(text))
    return [by_image.get(image["image_id"], []) for image in images]


def _keys(config, generator: str, subject: str) -> dict:
    if subject.endswith(".boxes"):
        return {"names": config.phrases.names, "meteor": config.describe.meteor}
    return {"seed": config.seed, "text": config.language_text.model_dump(), "meteor": config.describe.meteor}


def _reads(config, layout, generator: str, subject: str) -> Inputs:
    features = map(layout.features, config.generator(generator).encoders)
    inputs = named(layout.generator(generator), layout.descriptions(generator, subject), *features)
    inputs = {**inputs, **generator_inputs(config, layout, generator)}
    if not subject.endswith(".boxes"):
        return {**inputs, **text_files(config, generator, "treebank")}
    parses = [] if config.describe.region_texts else [layout.parses]
    return {**inputs, **named(*parses), **label_names(config)}


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
