"""`reproduce`: the tables of the papers with this run's numbers below the printed ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Run, Stage
from pipeline.specs.generators import ranker

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.metrics.paired import Columns, Draw

REPORTED = "test"
PHRASES = "region_to_phrase"
"""The direction that Niu et al. 2017, Table 4, measures."""


def reproduce(run: Run, job: Job) -> None:
    """Lay the models of a run below the papers' printed rows; what the data cannot support is named with its reason."""
    from benchmarks.papers.reproduction import render
    from benchmarks.papers.systems import systems
    from benchmarks.papers.tree_sections import tree_sections
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.storage.atomic import publish_text
    from pipeline.storage.commit import TABLES, read_verified
    from pipeline.storage.evaluations import read_summary
    from pipeline.storage.forms import Form
    from pipeline.storage.records import read_record

    config, layout = run.config, run.layout

    ours = systems(_systems(config))
    described = [_read_descriptions(run, name) for name in _generators(config)]
    ranked = [_read_phrases(run, name) for name in _phrase_models(config)]
    text = render(
        [*read_summary(layout.summary.path), *described, *ranked],
        ours,
        config.reproduce.collection,
        config.reproduce.others,
        config.name,
        lambda name, columns: _draw(run, name, columns),
        Bootstrap(config.evaluate.bootstrap, config.seed),
        _protocol(config),
    )
    if config.reproduce.trees:
        text += "\n" + tree_sections(
            ours, *(read_record(one.path, Form) for one in _tree_files(config, layout).values())
        )
    if config.reproduce.gong:
        text += "\n" + read_verified(layout.tables.path, TABLES)[0].decode("utf-8")
        page = layout.transfer_page.path.relative_to(layout.root)
        text += f"\n## Figures 3 and 4\n\nTest images with what the target set alone and SAE find: [{page}]({page}).\n"
    else:
        text += "\n## Gong et al.: Tables 1 to 6\n\nLeft out: reproduce.gong is false.\n"
    publish_text(job.path, text)


def _protocol(config: "Config") -> str:
    """That of the papers, all sentences, where the run has it."""
    from pipeline.settings.section import PROTOCOLS

    return next((one for one in PROTOCOLS if one in config.evaluate.protocols), PROTOCOLS[0])


def _systems(config: "Config") -> list[tuple[str, str, dict[str, Any]]]:
    """The models, the generators that rank, and those whose descriptions are judged: name, registered name, and
    settings."""
    trained = [(name, config.model(name).spec.name, _describe(config, name)) for name in config.models]
    for name in dict.fromkeys((*config.evaluate.generators, *_generators(config))):
        registered, own = config.generator(name).spec.name, _describe_generator(config, name)
        if name in _generators(config):
            trained.append((name, registered, own))
        if name in config.evaluate.generators:
            trained.append((ranker(name), registered, {**own, "loss": "likelihood", "score": "perplexity"}))
    return trained


def _describe_generator(config: "Config", name: str) -> dict[str, Any]:
    """The settings of a generator in the words of benchmarks.papers.printed. One that uses a joint space sees images
    by the encoders of that alone."""
    generator, space = config.generator(name), config.describe.space
    found = {**generator.settings.model_dump(exclude={"checkpoint_seconds"}), "seed": generator.seed}
    inside = generator.settings.in_space
    found |= _name_encoders(config, config.model(space).encoders if inside else generator.encoders)
    found |= {"space": space} if inside else {}
    further = config.language_text.file if generator.spec.text else None
    found |= {"candidates": config.describe.candidates.count} if generator.spec.text else {}
    return {**found, "learns from": f"train and {Path(further).name}" if further else "train"}


def _name_encoders(config: "Config", names: Sequence[str]) -> dict[str, str]:
    """Encoders in the words of benchmarks.papers.printed, and what they stand in place of."""
    stands = [config.reproduce.in_place_of.get(name) for name in names]
    found = {"encoders": ", ".join(_word(config.encoder(name)) for name in names)}
    return found | ({"in place of": ", ".join(stands)} if stands and None not in stands else {})


def _word(encoder: Any) -> str:
    return f"{encoder.architecture} {encoder.layer}" if encoder.spec.weights else encoder.architecture


def _describe(config: "Config", name: str) -> dict[str, Any]:
    """The settings of a model in the words of benchmarks.papers.printed."""
    model, parts = config.model(name), config.name_parts(name)
    found = {**(model.settings.model_dump(exclude={"checkpoint_seconds"}) if model.settings else {}), **model.named}
    found |= {"seed": model.seed, "scores": "corrected for hubs" if parts.csls else "as they are"}
    found |= _name_encoders(config, model.encoders)
    if model.spec.sentences == "vectors":
        found["text encoders"] = ", ".join(model.text_encoders)
    if model.spec.words and not model.spec.starts_from:
        words = model.word_vectors
        found["word vectors"] = (words.file or words.source) + ("" if words.train else ", fixed")
    if model.spec.regions != "none":
        found["regions"] = f"{config.regions.count} of {config.regions.proposals}"
    weak = "" if model.training == "target" else f" and the weak texts {model.documents} ({model.training})"
    found["learns from"] = ("train and dev" if parts.refit else "train") + weak
    return found


def _generators(config: "Config") -> tuple[str, ...]:
    """Those whose descriptions of the reported split are judged."""
    return config.generators if REPORTED in config.describe.splits else ()


def _subjects(config: "Config") -> dict[str, str]:
    """What is described, and how an evaluation of it calls it."""
    return {"images": REPORTED, **({"boxes": f"{REPORTED}.boxes"} if config.describe.boxes else {})}


def _read_descriptions(run: Run, generator: str) -> dict[str, Any]:
    """What a generator's descriptions are worth, as an evaluation of the reported split."""
    from pipeline.storage.forms import JudgementForm
    from pipeline.storage.records import read_record

    files = {what: run.layout.description_evaluation(generator, one) for what, one in _subjects(run.config).items()}
    judged = {what: read_record(one.path, JudgementForm) for what, one in files.items()}
    return {
        "model": generator,
        "split": REPORTED,
        "protocol": _protocol(run.config),
        "n_images": judged["images"]["n_images"],
        **judged,
    }


def _phrase_models(config: "Config") -> list[str]:
    """Those that rank phrases and regions, where a table of these is asked for."""
    from benchmarks.papers.printed import TABLES

    shown = {config.reproduce.collection, *config.reproduce.others}
    asked = any(table.collection in shown and PHRASES in dict(table.columns) for table in TABLES)
    return [name for name, _ in config.phrase_splits((REPORTED,))] if asked else []


def _read_phrases(run: Run, model: str) -> dict[str, Any]:
    """How a model ranks phrases for regions, as an evaluation of the reported split. Raises InputError where no
    box has a label."""
    from pipeline.errors import InputError
    from pipeline.storage.phrases import PhraseRanking
    from pipeline.storage.records import read_record

    path = run.layout.phrase_ranking(model, REPORTED).path
    found = read_record(path, PhraseRanking)
    if reason := found.get("left_out"):
        raise InputError(
            f"{path} ranks nothing ({reason}); give boxes labels, or take coco-region out of reproduce.others"
        )
    measured = found[PHRASES]["split"]
    about = {"model": model, "split": REPORTED, "protocol": _protocol(run.config)}
    return {**about, PHRASES: measured, "chance": {PHRASES: measured["chance"]}}


def _draw(run: Run, system: str, columns: "Columns") -> "Draw":
    """One training as the reported gallery measures it by `columns` of a table, which are all of one kind."""
    from dataclasses import fields

    import numpy as np

    from pipeline.evaluate.phrase_ranking import ranked_names
    from pipeline.generate.metrics import Statistics
    from pipeline.metrics.paired import Draw, draw_of_ranks
    from pipeline.storage.evaluations import read_measured, read_ranks
    from pipeline.storage.forms import JudgementForm
    from pipeline.storage.phrases import PhraseRanking

    layout, subjects = run.layout, _subjects(run.config)
    direction, metric = columns[0]
    if direction == PHRASES:
        path = layout.phrase_ranking(system, REPORTED).path
        names = ranked_names(PHRASES, "split")
        arrays = read_measured(path, PhraseRanking, "ranks")[1]
        ranks, images = (arrays[name] for name in names)
        return draw_of_ranks({PHRASES: ranks}, {PHRASES: images}, columns)
    if direction in subjects:
        path = layout.description_evaluation(system, subjects[direction]).path
        names = ["images", *(field.name for field in fields(Statistics))]
        arrays = read_measured(path, JudgementForm, "statistics")[1]
        images, of = np.unique(arrays["images"], return_inverse=True)
        statistics = Statistics(**{name: arrays[name] for name in names[1:]})
        return Draw(images, lambda weights: statistics.measure(metric, weights[of]))
    found = read_ranks(layout.evaluation(system, REPORTED, _protocol(run.config)).path)
    owners = found.pop("owners")
    each = {"image_to_sentence": np.arange(len(found["image_to_sentence"]))}
    return draw_of_ranks(found, {side: each.get(side, owners) for side in found}, columns)


def _reads(config, layout) -> Inputs:
    judged = [names for names in config.evaluations() if names[1:] == (REPORTED, _protocol(config))]
    evaluations = {f"evaluation/{names[0]}": layout.evaluation(*names) for names in judged}
    tables = {"tables": layout.tables, "page": layout.transfer_page} if config.reproduce.gong else {}
    trees = _tree_files(config, layout) if config.reproduce.trees else {}
    ranked = {f"phrases/{name}": layout.phrase_ranking(name, REPORTED) for name in _phrase_models(config)}
    described = [
        layout.description_evaluation(name, one) for name in _generators(config) for one in _subjects(config).values()
    ]
    return {
        "summary": layout.summary,
        **evaluations,
        **{one.name: one for one in described},
        **ranked,
        **tables,
        **trees,
    }


def _tree_files(config, layout) -> Inputs:
    """What Socher et al.'s sections 6.6 and 6.7 are measured by."""
    relations = any(config.model(name).spec.relations for name in config.models)
    return {"sentence pairs": layout.sentence_pairs} | ({"relations": layout.relations} if relations else {})


STAGE = Stage(
    reproduce,
    version=9,
    keys=lambda config: {
        "name": config.name,
        "reproduce": config.reproduce.model_dump(),
        "seed": config.seed,
        "bootstrap": config.evaluate.bootstrap,
        "systems": {name: own for name, _, own in _systems(config)},
    },
    reads=_reads,
    writes=lambda layout: layout.reproduction,
)
