# Functions for all rules. The inputs of a rule are the inputs that its stage declares. The parameter `decides` has the
# version of the stage and the keys of the configuration that decide its result. If `decides` changes, Snakemake reruns
# the job and the jobs that depend on it.

import json
import re
import shlex
import sys
import time
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from pipeline.compute.device import may_have_gpu, visible_names
from pipeline.config.former import accept_former_spelling
from pipeline.config.loading import read_mapping, validate
from pipeline.config.registry import allow, named_import_paths
from pipeline.errors import JointspaceError
from pipeline.run import Outside, Run
from pipeline.run.layout import Shards
from pipeline.run.stage import list_inputs
from stages.catalogue import declared

try:
    for path in workflow.configfiles:
        read_mapping(path)  # raises an error if a key is given twice, which Snakemake accepts
    allow(named_import_paths(config))
    config.update(accept_former_spelling(config))  # jobs then do not repeat the warning about former spellings
    CONFIG = validate(config)
except JointspaceError as error:
    raise WorkflowError(str(error))

STAGES = declared()
THIS_RUN = Run(Path(CONFIG.results_root) / CONFIG.name, CONFIG)
LAYOUT = THIS_RUN.layout
RUN = THIS_RUN.root
LOGS = RUN / "logs"
BENCHMARKS = LAYOUT.benchmarks
CAPTIONS = Path(workflow.basedir).absolute() / "docs/captions"  # paths in a rule are relative to its file
PARTS = range(CONFIG.parts)
PIXELS = [name for (name,) in STAGES["extract"].wanted(CONFIG)]
GPU = int(CONFIG.device != "cpu")
STARTED = time.time()


def jointspace(command, options=""):
    """Return the shell command of a rule that runs a command of jointspace."""
    program, run = (shlex.quote(str(path)) for path in (Path(sys.executable).with_name("jointspace"), RUN))
    words = [plain(program), "--threads {threads}", options, "--log {log:q}", "stage", command, "--run", plain(run)]
    return " ".join(filter(None, words))


def on_gpu(command):
    """Return the shell command of a rule that may use the GPUs of its resource `gpu`."""
    return jointspace(command, "--gpus {resources.gpu}")


def plain(text):
    """Escape the braces in a text for Snakemake."""
    return text.replace("{", "{{").replace("}", "}}")


def commits(artefact, part=None):
    """Return the commit records of an artefact. If it is sharded, they are the records of one part, or of all parts."""
    if isinstance(artefact, Outside):
        return [str(artefact.path)]
    if not isinstance(artefact, Shards):
        return [str(artefact.commit)]
    numbers = [0] if artefact.chunked else PARTS if part is None else [int(part)]
    return [str(artefact.part_record(number)) for number in numbers]


def reads(stage, every=None):
    """Return the input function of a rule, which lists the commit records of the inputs of a stage.

    The names of the job are its wildcards, or all names that the function `every` returns.
    """
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
    """Return the parameter of a rule: the version of its stage and the keys that decide the result, as JSON."""
    stage = STAGES[stage]

    @cache  # because the keys of `ingest` contain the state of every file of the collection
    def depends(*names):
        return json.dumps(stage.depends(CONFIG, *names), sort_keys=True, default=str)

    return lambda wildcards: " ".join(depends(*names) for names in jobs(stage, every, wildcards))


def jobs(stage, every, wildcards):
    """Return the names of the artefacts that one job makes: from the function `every`, or from its wildcards."""
    return every(wildcards) if every else [tuple(getattr(wildcards, name) for name in stage.names)]


def any_of(stage, name, but=()):
    """Return a regular expression of the values that a wildcard of a stage may have, without the values `but`.

    Several rules have outputs of the same form. The values decide which rule makes a file.
    """
    place = STAGES[stage].names.index(name)
    values = {tuple(names)[place] for names in STAGES[stage].choices(CONFIG)}.difference(but)
    return "|".join(sorted(map(re.escape, values))) or "(?!)"


def wanted(stage):
    """List the commit records of a stage that the rule `all` needs."""
    stage = STAGES[stage]
    return [path for names in stage.wanted(CONFIG) for made in stage.outputs(LAYOUT, *names) for path in commits(made)]


def writes(stage, names):
    """List the outputs of a job: the commit records of its artefacts (of one part, if they are sharded), and the file
    that Snakemake's own report shows, if the stage has one.
    """
    artefacts = stage.outputs(LAYOUT, *names)
    if stage.shown:
        return [*(str(artefact.commit) for artefact in artefacts[:-1]), *shown(artefacts[-1], *stage.shown)]
    return [
        str(artefact.part_record("{part}") if isinstance(artefact, Shards) else artefact.commit) for artefact in artefacts
    ]


def call(stage):
    """Return the shell command of the rule of a stage."""
    names = [f"{{wildcards.{name}:q}}" for name in stage.names]
    command = " ".join([stage.command, *names, *(["--part {wildcards.part}"] if stage.sharded else [])])
    return on_gpu(command) if stage.gpu else jointspace(command)


def gpu_of_texts(wildcards):
    """Return the number of GPUs for a text encoder. Only the text encoders of libraries are networks."""
    return GPU if CONFIG.text_encoder(wildcards.encoder).spec.library else 0


def every_protocol(wildcards):
    return [(wildcards.model, wildcards.split, protocol) for protocol in CONFIG.evaluate.protocols]


def every_pixel_encoder(wildcards):
    return [(name,) for name in PIXELS]


def shown(artefact, caption, category):
    """List the commit record of a file that Snakemake's own report shows, and the file with its caption."""
    file = report(str(artefact.path), caption=f"{CAPTIONS}/{caption}.rst", category=category)
    return [file] if artefact.commit == artefact.path else [str(artefact.commit), file]


def shared_gpus(stage):
    """Return the number of GPUs of this machine that one job of a stage shares among its processes.

    It is 0 if the stage does not decode photos, if this machine has no GPU, or if a queue assigns GPUs to jobs.
    """
    if not STAGES[stage].decodes or CONFIG.device not in ("auto", "cuda") or not may_have_gpu():
        return 0
    if workflow.remote_exec or not workflow.local_exec:
        return 0
    count = len(visible_names())
    declared_gpus = workflow.global_resources.get("gpu")
    limit = getattr(declared_gpus, "value", declared_gpus)  # early releases of Snakemake 9 store a plain number
    return count if limit is None else min(count, limit)


def gpus(stage):
    """Return the function for the number of GPUs that a job of a stage needs."""
    return lambda wildcards: max(GPU, shared_gpus(stage))


def threads(stage):
    """Return the function for the number of threads of a job. On a machine with GPUs, all cores decode photos."""
    return lambda wildcards: workflow.cores if shared_gpus(stage) else STAGES[stage].threads


def memory(stage):
    """Return the function for the megabytes that a job of a stage needs. Each retry asks for more."""
    return lambda wildcards, attempt: STAGES[stage].memory * attempt
