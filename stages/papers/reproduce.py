"""`reproduce`: the tables of the papers with this run's numbers below the printed ones."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.registry import ranker
from pipeline.run import Input, Inputs, Job, Run, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.metrics.paired import Columns, Draw
    from pipeline.papers.page import Result
    from pipeline.papers.reproduction import System
    from pipeline.run.layout import Layout

REPORTED = "test"
TRANSFER = "transfer.html"
"""The page beside the tables that has Gong et al.'s Figures 3 and 4."""
RESULT = "reproduction.json"
"""The tables as `pipeline.papers.page` reads them, beside them."""
LIBRARIES = ("numpy", "scipy", "torch", "scikit-learn")


def _reads(config: "Config", layout: "Layout") -> Inputs:
    judged = [names for names in config.evaluations() if names[1:] == (REPORTED, _protocol(config))]
    study = [layout.manifest, layout.study, layout.tables]
    described = [
        layout.description_evaluation(name, split)
        for name in _generators(config)
        for split in _subjects(config).values()
    ]
    return {
        "summary": layout.summary,
        "evaluations": [layout.evaluation(*names) for names in judged],
        "described": described,
        "study": study if "gong" in config.reproduce.papers else [],
        "trees": _tree_reads(config, layout) if config.reproduce.trees else [],
    }


@stage(
    version=17,
    memory=8000,
    shown=("reproduction", "Tables"),
    keys=lambda config: {
        "name": config.name,
        "reproduce": config.reproduce.model_dump(),
        "seed": config.seed,
        "bootstrap": config.evaluate.bootstrap,
        "systems": {name: settings for name, _, settings in _systems(config)},
    },
    reads=_reads,
    writes=lambda layout: layout.reproduction,
)
def reproduce(run: Run, job: Job) -> None:
    """Compare a run's models with the published rows of the papers.

    Rows that the data cannot support are listed with the reason. The same figures are written as JSON next to the
    tables.
    """
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.papers import page
    from pipeline.papers.reproduction import Reproduction, render, systems
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import TABLES, read_verified
    from pipeline.storage.records import read_summary

    config, layout, files = run.config, run.layout, FileBatch()
    ours = systems(_systems(config))
    described = [_read_descriptions(run, name) for name in _generators(config)]
    tables = Reproduction(
        [*read_summary(layout.summary.path), *described],
        ours,
        config.reproduce.collection,
        config.reproduce.others,
        lambda name, columns: _draw(run, name, columns),
        Bootstrap(config.evaluate.bootstrap, config.seed),
        _protocol(config),
    ).tables(config.reproduce.papers)
    if config.reproduce.trees:
        tables += _tree_tables(run, ours)
    text = render(tables, config.name, _protocol(config)) if tables else ""
    if "gong" in config.reproduce.papers:
        gong, commit = read_verified(layout.tables.path, TABLES)
        tables = [*commit.details["tables"], *tables]
        text = "\n".join([gong.decode("utf-8"), *([text] if text else [])])
        files.add(job.path.with_name(TRANSFER), _show_transfer(run).encode())
        text += "\n## Figures 3 and 4\n\n"
        text += f"Test images with what the target set alone and SAE find: [{TRANSFER}]({TRANSFER}).\n"
    result = {"paper": config.name, "run": _describe_run(run), "tables": tables}
    files.add(job.path.with_name(RESULT), page.dump(result).encode())
    files.add(job.path, text.encode(), commit=True)
    files.publish()


def _describe_run(run: Run) -> dict[str, Any]:
    """What measured: the commit of a checkout, the machine, the wall seconds of the jobs, the seed and libraries."""
    from importlib.metadata import version

    from pipeline.storage.records import read_benchmarks

    folder = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() or None,
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), device {run.config.device}",
        "seconds": round(sum(job.seconds for jobs in read_benchmarks(run.layout.benchmarks).values() for job in jobs)),
        "seed": run.config.seed,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    }


def _show_transfer(run: Run) -> str:
    """The page of Gong et al.'s Figures 3 and 4."""
    from pipeline.images.opening import ImageLimits
    from pipeline.report.page import render_transfer
    from pipeline.report.photographs import Photographs
    from pipeline.storage.commit import read_record

    study, manifest = read_record(run.layout.study.commit), run.manifest
    show = Photographs(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    return render_transfer(study["transfer"], lambda image_id: show(manifest.pick([image_id])[0]))


def _tree_tables(run: Run, systems: "Sequence[System]") -> "list[Result]":
    """Socher et al. 2014, sections 6.6, of the systems that make one vector of a sentence's words, and 6.7, of those
    that have a matrix for every relation of dependency trees."""
    import numpy as np

    from pipeline.compute.multivectors import one_vector_each
    from pipeline.metrics.ranks import pair_ranks
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.papers.tree_sections import pair_tables, relation_table
    from pipeline.storage.texts import ParseShard
    from pipeline.text.dependencies import read_conllu

    sentences = run.pairs(REPORTED)
    shards = [ParseShard(run.layout.parses.folder, number) for number in range(run.manifest.n_shards)]
    entries = [entry for shard in shards for entry in read_conllu(shard.conllu, str(shard.path))]
    chosen = [entries[row] for row in sentences.sentence_id]
    verbs = np.array([-1 if "fallback" in entry.comments else int("VERB" in entry.parse.upos) for entry in chosen])
    lengths = np.array([sum(tag != "PUNCT" for tag in entry.parse.upos) for entry in chosen])

    def ranks(name: str) -> tuple[np.ndarray, np.ndarray]:
        embeddings = run.embeddings(name)
        vectors = one_vector_each(embeddings.read("sentences", sentences.sentence_id))
        return pair_ranks(vectors, sentences.owners, embeddings.metric)

    wanted = set(_word_models(run.config))
    measured = {system.label: [ranks(name) for name in system.names] for system in systems if wanted >= {*system.names}}
    pairs = next(iter(measured.values()))[0][0]
    by_system = {label: [rank for _, rank in trainings] for label, trainings in measured.items()}
    bootstrap = Bootstrap(run.config.evaluate.bootstrap, run.config.seed)
    return [
        *pair_tables(by_system, pairs, sentences.owners, verbs, lengths, bootstrap),
        relation_table(_measure_relations(run, systems)),
    ]


def _word_models(config: "Config") -> list[str]:
    return [name for name in config.models if (spec := config.model(name).spec).words and not spec.multi_vector]


def _measure_relations(run: Run, systems: "Sequence[System]") -> dict[str, list[tuple[str, list[float], int]]]:
    """Of each system that has a matrix for every relation of dependency trees: the relation, the Frobenius norms of its
    trainings, and how many training words have it."""
    import numpy as np

    from pipeline.config.stored import restore
    from pipeline.storage.commit import read_record

    models = _relation_models(run.config)
    labels = read_record(run.layout.labels.path) if models else {}
    norms = {}
    for name in models:
        stored, folder = run.model(name), run.layout.model(name).path
        model = restore(stored.details["registered"], stored.settings, stored.tensors, folder)
        norms[name] = model.network.sentences.norms()
    measured = {}
    for system in systems:
        if norms.keys() >= {*system.names}:
            trainings = np.array([norms[name] for name in system.names], float)
            rows = np.flatnonzero(np.isfinite(trainings).all(axis=0))
            measured[system.label] = [
                (labels["relations"][row], trainings[:, row].tolist(), labels["relation_counts"][row]) for row in rows
            ]
    return measured


def _relation_models(config: "Config") -> list[str]:
    return [name for name in config.models if config.model(name).spec.relations]


def _protocol(config: "Config") -> str:
    """That of the papers, all sentences, where the run has it."""
    from pipeline.config.section import PROTOCOLS

    return next((protocol for protocol in PROTOCOLS if protocol in config.evaluate.protocols), PROTOCOLS[0])


def _systems(config: "Config") -> list[tuple[str, str, dict[str, Any]]]:
    """The models, the generators that rank, and those whose descriptions are judged: name, registered name, and
    settings."""
    trained = [(name, config.model(name).spec.name, _describe(config, name)) for name in config.models]
    for name in dict.fromkeys((*config.evaluate.generators, *_generators(config))):
        registered, settings = config.generator(name).spec.name, _describe_generator(config, name)
        if name in _generators(config):
            trained.append((name, registered, settings))
        if name in config.evaluate.generators:
            trained.append((ranker(name), registered, {**settings, "loss": "likelihood", "score": "perplexity"}))
    return trained


def _describe_generator(config: "Config", name: str) -> dict[str, Any]:
    """The settings of a generator in the words of pipeline.papers.printed. One that uses a joint space sees images
    by the encoders of that alone."""
    generator, space = config.generator(name), config.describe.space
    settings = {**generator.settings.model_dump(exclude={"checkpoint_seconds"}), "seed": generator.seed}
    inside = generator.settings.in_space
    settings |= _name_encoders(config, config.model(space).encoders if inside else generator.encoders)
    settings |= {"space": space} if inside else {}
    further = config.language_text.file if generator.spec.text else None
    settings |= {"candidates": config.describe.candidates} if generator.spec.text else {}
    return {**settings, "learns from": f"train and {Path(further).name}" if further else "train"}


def _name_encoders(config: "Config", names: Sequence[str]) -> dict[str, str]:
    """Encoders in the words of pipeline.papers.printed, and what they stand in place of."""
    stands = [stood for name in names if (stood := config.reproduce.in_place_of.get(name)) is not None]
    encoders = {"encoders": ", ".join(config.encoder(name).label for name in names)}
    return encoders | ({"in place of": ", ".join(stands)} if stands and len(stands) == len(names) else {})


def _describe(config: "Config", name: str) -> dict[str, Any]:
    """The settings of a model in the words of pipeline.papers.printed."""
    model = config.model(name)
    settings = {**(model.settings.model_dump(exclude={"checkpoint_seconds"}) if model.settings else {}), **model.named}
    settings |= {"seed": model.seed, "scores": "corrected for hubs" if config.uncorrected(name) else "as they are"}
    settings |= _name_encoders(config, model.encoders)
    if model.spec.multi_vector:  # `sum` says how these are scored, by products
        settings.pop("score", None)
    if model.spec.sentences == "vectors":
        settings["text encoders"] = ", ".join(model.text_encoders)
    if model.spec.words and not model.spec.starts_from:
        words = model.word_vectors
        settings["word vectors"] = (words.file or words.source) + ("" if words.train else ", fixed")
    if model.spec.regions != "none":
        settings["regions"] = f"{config.regions.count} of {config.regions.proposals}"
    weak = "" if model.training == "target" else f" and the weak texts {model.documents} ({model.training})"
    settings["learns from"] = ("train and dev" if config.refits(name) else "train") + weak
    return settings


def _generators(config: "Config") -> tuple[str, ...]:
    """Those whose descriptions of the reported split are judged."""
    return config.generators if REPORTED in config.describe.splits else ()


def _subjects(config: "Config") -> dict[str, str]:
    """What is described, and how an evaluation of it calls it."""
    return {"images": REPORTED, **({"boxes": f"{REPORTED}.boxes"} if config.describe.boxes else {})}


def _read_descriptions(run: Run, generator: str) -> dict[str, Any]:
    """What a generator's descriptions are worth, as an evaluation of the reported split."""
    from pipeline.storage.commit import read_record

    judged = {}
    for subject, split in _subjects(run.config).items():
        judged[subject] = read_record(run.layout.description_evaluation(generator, split).path)
    return {
        "model": generator,
        "split": REPORTED,
        "protocol": _protocol(run.config),
        "n_images": judged["images"]["n_images"],
        **judged,
    }


def _draw(run: Run, system: str, columns: "Columns") -> "Draw":
    """One training as the reported gallery measures it by `columns` of a table, which are all of one kind."""
    import numpy as np

    from pipeline.generate.metrics import Statistics
    from pipeline.metrics.paired import Draw, draw_of_ranks
    from pipeline.storage.records import read_measured

    layout, subjects = run.layout, _subjects(run.config)
    direction, metric = columns[0]
    if direction in subjects:
        path = layout.description_evaluation(system, subjects[direction]).path
        names = ["images", *(field.name for field in fields(Statistics))]
        arrays = read_measured(path, "statistics")
        images, of = np.unique(arrays["images"], return_inverse=True)
        statistics = Statistics(**{name: arrays[name] for name in names[1:]})
        return Draw(images, lambda weights: statistics.measure(metric, weights[of]))
    ranks = read_measured(layout.evaluation(system, REPORTED, _protocol(run.config)).path, "ranks")
    owners = ranks.pop("owners")
    own = {"image_to_sentence": np.arange(len(ranks["image_to_sentence"]))}
    return draw_of_ranks(ranks, {direction: own.get(direction, owners) for direction in ranks}, columns)


def _tree_reads(config: "Config", layout: "Layout") -> "list[Input]":
    """What Socher et al.'s sections 6.6 and 6.7 are measured by."""
    models = [layout.model(name) for name in _relation_models(config)]
    embeddings = map(layout.embeddings, _word_models(config))
    return [layout.manifest, layout.parses, *embeddings, *([layout.labels] if models else []), *models]
