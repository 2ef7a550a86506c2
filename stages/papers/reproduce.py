"""`reproduce`: the published tables of the papers with the results of the run."""

import os
import platform
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.registry import ranker
from pipeline.run import Input, Inputs, Job, Layout, Run, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.config.names import Config
    from pipeline.metrics.paired import Columns, Draw
    from pipeline.papers.reproduction import System
    from pipeline.papers.tables import Result

REPORTED_SPLIT = "test"
TRANSFER_PAGE = "transfer.html"
"""Name of the file of the page with Figures 3 and 4 of Gong et al."""
RESULT = "reproduction.json"
"""Name of the file with the tables in the form of `pipeline.papers.tables`."""
LIBRARIES = ("numpy", "scipy", "torch", "scikit-learn")
MACHINE_KEYS = {
    "data_root",
    "weights_root",
    "results_root",
    "parts",
    "device",
    "workers",
    "scheduler",
    "cluster",
    "serve",
}
"""Keys of the configuration that concern only the machine, and do not decide a result."""


def digest_configuration(config: "Config") -> str:
    """Compute a digest of the resolved configuration, with all defaults but without MACHINE_KEYS."""
    from pipeline.storage.json_files import fingerprint

    return fingerprint("configuration", 1, config.model_dump(mode="json", exclude=MACHINE_KEYS))


def _reads(config: "Config", layout: Layout) -> Inputs:
    evaluated = [names for names in config.evaluations() if names[1:] == (REPORTED_SPLIT, _protocol(config))]
    described = [
        layout.description_evaluation(name, split)
        for name in _generators(config)
        for split in _subjects(config).values()
    ]
    return {
        "manifest": layout.manifest,
        "summary": layout.summary,
        "evaluations": [layout.evaluation(*names) for names in evaluated],
        "described": described,
        "study": layout.study if "gong" in config.reproduce.papers else None,
        "trees": _tree_reads(config, layout) if config.reproduce.trees else [],
    }


@stage(
    version=18,
    memory=8000,
    shown=("reproduction", "Tables"),
    keys=lambda config: {"name": config.name, "configuration": digest_configuration(config)},
    reads=_reads,
    writes=lambda layout: layout.reproduction,
)
def reproduce(run: Run, job: Job) -> None:
    """Write the tables of the papers with the published results and the results of this run.

    A table that the data cannot support is listed with the reason. The same tables are written as JSON."""
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.papers import tables
    from pipeline.papers.reproduction import Reproduction, group_seeds, render
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import read_summary

    config = run.config
    files = FileBatch()
    bootstrap = Bootstrap(config.evaluate.bootstrap, config.seed)
    protocol = _protocol(config)
    systems = group_seeds(_trained(config))
    evaluations = [
        *read_summary(run.layout.summary.path),
        *(_read_descriptions(run, name) for name in _generators(config)),
    ]

    def measure(name: str, columns: "Columns") -> "Draw":
        return _measure(run, name, columns)

    found = Reproduction(evaluations, systems, config.reproduce, measure, bootstrap, protocol).make_tables()
    if config.reproduce.trees:
        found += _tree_tables(run, systems)
    if "gong" in config.reproduce.papers:
        found = [*read_record(run.layout.study.commit)["tables"], *found]
        files.add(job.path.with_name(TRANSFER_PAGE), render_figures(run).encode())
    text = render(found, config.name, protocol)
    if "gong" in config.reproduce.papers:
        text += "\n## Gong et al.: Figures 3 and 4\n\n"
        text += f"[{TRANSFER_PAGE}]({TRANSFER_PAGE}) shows the captions that the target set alone and SAE find.\n"
    result = {"paper": config.name, "run": describe_run(run, job, systems), "tables": found}
    files.add(job.path.with_name(RESULT), tables.dump(result).encode())
    files.add(job.path, text.encode(), commit=True)
    files.publish()


def describe_run(run: Run, job: Job, systems: "Sequence[System]") -> dict[str, Any]:
    """Describe how a result was measured, in the form of the key `run` of a result.

    `configuration` is the digest of the resolved configuration, `data` the digest of the images and captions, and
    `seeds` the seeds of each system. `commit` is the commit of the checkout, and `clean` says whether none of its
    tracked files was changed. `commit` and `clean` are None outside of a checkout. `seconds` is the sum of the wall
    seconds of all jobs.
    """
    from importlib.metadata import version

    from pipeline.storage.records import read_benchmarks

    def git(*arguments: str) -> str | None:
        called = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)
        return called.stdout.strip() if called.returncode == 0 else None

    config = run.config
    changes = git("status", "--porcelain", "--untracked-files=no")
    return {
        "configuration": digest_configuration(config),
        "commit": git("rev-parse", "--short", "HEAD"),
        "clean": None if changes is None else not changes,
        "data": job.digests[run.layout.manifest.name],
        "seeds": {system.label: system.seeds for system in systems},
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), device {config.device}",
        "seconds": round(sum(job.seconds for jobs in read_benchmarks(run.layout.benchmarks).values() for job in jobs)),
        "seed": config.seed,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    }


def render_figures(run: Run) -> str:
    """Render the page of Figures 3 and 4 of Gong et al."""
    from pipeline.images.opening import ImageLimits
    from pipeline.report.page import render_page
    from pipeline.report.photographs import Photographs
    from pipeline.storage.commit import read_record

    study = read_record(run.layout.study.commit)
    manifest = run.manifest
    show = Photographs(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    return render_page(
        "transfer.html", cases=study["transfer"], picture=lambda image_id: show(manifest.pick([image_id])[0])
    )


def _tree_tables(run: Run, systems: "Sequence[System]") -> "list[Result]":
    """Make the tables of sections 6.6 and 6.7 of Socher et al. 2014.

    Section 6.6 has the systems whose models read words and have one vector per caption, and section 6.7 has the systems
    with a matrix per relation.
    """
    import numpy as np

    from pipeline.compute.multivectors import one_vector_each
    from pipeline.metrics.ranks import pair_ranks
    from pipeline.papers.tree_sections import pair_tables, relation_table
    from pipeline.storage.texts import ParseShard
    from pipeline.text.dependencies import read_conllu

    sentences = run.pairs(REPORTED_SPLIT)
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
    reproduced = list(run.config.reproduce.reproduced)
    return [
        *pair_tables(by_system, reproduced, pairs, verbs, lengths),
        relation_table(_measure_relations(run, systems)),
    ]


def _word_models(config: "Config") -> list[str]:
    return [name for name in config.models if (spec := config.model(name).spec).words and not spec.multi_vector]


def _measure_relations(run: Run, systems: "Sequence[System]") -> dict[str, list[tuple[str, list[float], int]]]:
    """Return the relations of each system whose models have a matrix per relation, by the label of the system.

    A relation is (name, Frobenius norm of its matrix in each training, number of training words that have the
    relation). A relation whose norm is not finite in one of the trainings is left out.
    """
    import numpy as np

    from pipeline.config.stored import restore
    from pipeline.storage.commit import read_record

    models = _relation_models(run.config)
    labels = read_record(run.layout.labels.path) if models else {}
    norms = {}
    for name in models:
        stored = run.model(name)
        folder = run.layout.model(name).path
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
    """Return the protocol by which the tables are measured.

    It is the protocol with all captions, which the papers use, if the configuration evaluates the run by this protocol.
    Otherwise it is the protocol with the first caption of each image.
    """
    from pipeline.config.section import PROTOCOLS

    return next((protocol for protocol in PROTOCOLS if protocol in config.evaluate.protocols), PROTOCOLS[0])


def _trained(config: "Config") -> list[tuple[str, str, int]]:
    """List (name, registered name, seed) for each model, each generator whose captions are evaluated, and each
    generator that ranks captions."""
    models = [(name, config.model(name)) for name in config.models]
    generators = [(name, config.generator(name)) for name in _generators(config)]
    rankers = [(ranker(name), config.generator(name)) for name in config.evaluate.generators]
    return [(name, chosen.spec.name, chosen.seed) for name, chosen in (*models, *generators, *rankers)]


def _generators(config: "Config") -> tuple[str, ...]:
    """Return the generators whose captions of the reported split are evaluated."""
    return config.generators if REPORTED_SPLIT in config.describe.splits else ()


def _subjects(config: "Config") -> dict[str, str]:
    """Return the subjects of generated captions, as subject -> the name of the evaluation of the subject.

    The subjects are `images`, and `boxes` if captions of boxes are configured.
    """
    boxes = {"boxes": f"{REPORTED_SPLIT}.boxes"} if config.describe.boxes else {}
    return {"images": REPORTED_SPLIT, **boxes}


def _read_descriptions(run: Run, generator: str) -> dict[str, Any]:
    """Return the measures of generated captions in the form of an evaluation of the reported split."""
    from pipeline.storage.commit import read_record

    measured = {}
    for subject, split in _subjects(run.config).items():
        measured[subject] = read_record(run.layout.description_evaluation(generator, split).path)
    return {
        "model": generator,
        "split": REPORTED_SPLIT,
        "protocol": _protocol(run.config),
        "n_images": measured["images"]["n_images"],
        **measured,
    }


def _measure(run: Run, name: str, columns: "Columns") -> "Draw":
    """Return a Draw of the model or generator `name`: the sum of its `columns` on samples of the reported split.

    The columns are all measures of retrieval, or a single metric of generated captions.
    """
    import numpy as np

    from pipeline.generate.metrics import Statistics
    from pipeline.metrics.paired import Draw, draw_of_ranks
    from pipeline.storage.records import read_measured

    layout = run.layout
    subjects = _subjects(run.config)
    direction, metric = columns[0]
    if direction in subjects:
        path = layout.description_evaluation(name, subjects[direction]).path
        names = ["images", *(field.name for field in fields(Statistics))]
        arrays = read_measured(path, "statistics")
        images, of = np.unique(arrays["images"], return_inverse=True)
        statistics = Statistics(**{name: arrays[name] for name in names[1:]})
        return Draw(images, lambda weights: statistics.measure(metric, weights[of]))
    ranks = read_measured(layout.evaluation(name, REPORTED_SPLIT, _protocol(run.config)).path, "ranks")
    owners = ranks.pop("owners")
    own = {"image_to_sentence": np.arange(len(ranks["image_to_sentence"]))}
    return draw_of_ranks(ranks, {direction: own.get(direction, owners) for direction in ranks}, columns)


def _tree_reads(config: "Config", layout: Layout) -> "list[Input]":
    """List the inputs from which sections 6.6 and 6.7 of Socher et al. are measured."""
    models = [layout.model(name) for name in _relation_models(config)]
    embeddings = map(layout.embeddings, _word_models(config))
    return [layout.parses, *embeddings, *([layout.labels] if models else []), *models]
