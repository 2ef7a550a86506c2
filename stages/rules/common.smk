# What the rules share. An input is what a stage's declaration reads; a parameter that changes reruns the job, and with it
# what depends on it: the stage's version and the part of the configuration that decides its result.

import json
import re
import shlex
import sys
import time
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from pipeline.config.former import accept_former_spelling
from pipeline.config.loading import read_mapping, validate
from pipeline.config.registry import allow, named_places
from pipeline.errors import JointspaceError
from pipeline.run import Outside, Run
from pipeline.run.layout import Shards
from pipeline.run.stage import list_inputs
from stages.catalogue import declared

try:
    for path in workflow.configfiles:
        read_mapping(path)  # Snakemake accepts a key that is given twice
    allow(named_places(config))
    config.update(accept_former_spelling(config))  # so that no job warns of the former spelling again
    CONFIG = validate(config)
except JointspaceError as error:
    raise WorkflowError(str(error))

STAGES = declared()
THIS_RUN = Run(Path(CONFIG.results_root) / CONFIG.name, CONFIG)
LAYOUT = THIS_RUN.layout
RUN = THIS_RUN.root
LOGS = RUN / "logs"
BENCHMARKS = LAYOUT.benchmarks
CAPTIONS = Path(workflow.basedir).absolute() / "docs/captions"  # whichever file has the rule
PARTS = range(CONFIG.parts)
PIXELS = [name for (name,) in STAGES["extract"].wanted(CONFIG)]
GPU = int(CONFIG.device != "cpu")
STARTED = time.time()


def jointspace(command, options=""):
    """The shell command of a rule."""
    program, run = (shlex.quote(str(path)) for path in (Path(sys.executable).with_name("jointspace"), RUN))
    words = [plain(program), "--threads {threads}", options, "--log {log:q}", "stage", command, "--run", plain(run)]
    return " ".join(filter(None, words))


def on_gpu(command):
    return jointspace(command, "--gpus {resources.gpu}")


def plain(text):
    """`text` with braces escaped for Snakemake."""
    return text.replace("{", "{{").replace("}", "}}")


def commits(artefact, part=None):
    """The files to wait for: of shards those of the same part, or of all parts."""
    if isinstance(artefact, Outside):
        return [str(artefact.path)]
    if not isinstance(artefact, Shards):
        return [str(artefact.commit)]
    numbers = [0] if artefact.whole else PARTS if part is None else [int(part)]
    return [str(artefact.part(number)) for number in numbers]


def reads(stage, every=None):
    """The input function of a rule: the commits of what the stage reads of its wildcards, or of each of `every`."""
    stage = STAGES[stage]

    def files(wildcards):
        part = getattr(wildcards, "part", None)
        found = commits(LAYOUT.manifest) if stage.sharded else []
        for names in jobs(stage, every, wildcards):
            for artefact in list_inputs(stage.reads(CONFIG, LAYOUT, *names)):
                found += commits(artefact, part)
        return list(dict.fromkeys(found))

    return files


def decides(stage, every=None):
    """The version and the keys that decide what a rule makes."""
    stage = STAGES[stage]

    @cache  # the keys of `ingest` have the state of every file of the collection
    def depends(*names):
        return json.dumps(stage.depends(CONFIG, *names), sort_keys=True, default=str)

    return lambda wildcards: " ".join(depends(*names) for names in jobs(stage, every, wildcards))


def jobs(stage, every, wildcards):
    """The names of what one job makes."""
    return every(wildcards) if every else [tuple(getattr(wildcards, name) for name in stage.names)]


def any_of(stage, name, but=()):
    """The values that a wildcard may have: of several rules with the same output one makes what is asked for."""
    place = STAGES[stage].names.index(name)
    values = {tuple(names)[place] for names in STAGES[stage].choices(CONFIG)}.difference(but)
    return "|".join(sorted(map(re.escape, values))) or "(?!)"


def wanted(stage):
    """What of a stage `all` makes."""
    stage = STAGES[stage]
    return [path for names in stage.wanted(CONFIG) for made in stage.outputs(LAYOUT, *names) for path in commits(made)]


def writes(stage, names):
    """The commits of what a job makes, of shards the commit of its part; and the file that Snakemake's own report shows.
    """
    artefacts = stage.outputs(LAYOUT, *names)
    if stage.shown:
        return [*(str(artefact.commit) for artefact in artefacts[:-1]), *shown(artefacts[-1], *stage.shown)]
    return [str(artefact.part("{part}") if isinstance(artefact, Shards) else artefact.commit) for artefact in artefacts]


def call(stage):
    """The shell command of the rule of a stage."""
    names = [f"{{wildcards.{name}:q}}" for name in stage.names]
    command = " ".join([stage.command, *names, *(["--part {wildcards.part}"] if stage.sharded else [])])
    return on_gpu(command) if stage.gpu else jointspace(command)


def gpu_of_texts(wildcards):
    """Only the text encoders of libraries are networks."""
    return GPU if CONFIG.text_encoder(wildcards.encoder).spec.library else 0


def every_protocol(wildcards):
    return [(wildcards.model, wildcards.split, protocol) for protocol in CONFIG.evaluate.protocols]


def every_pixel_encoder(wildcards):
    return [(name,) for name in PIXELS]


def shown(artefact, caption, category):
    """The commit of a file that Snakemake's own report shows, and the file."""
    file = report(str(artefact.path), caption=f"{CAPTIONS}/{caption}.rst", category=category)
    return [file] if artefact.commit == artefact.path else [str(artefact.commit), file]


def memory(stage):
    """The megabytes that a job of a stage needs; a retry asks for more."""
    return lambda wildcards, attempt: STAGES[stage].memory * attempt
