# From photographs and sentences to a searchable index: one rule a stage, one command a rule.
#
#   snakemake all --cores 2                                             the demo, into results/demo
#   snakemake all --cores 2 --configfile config/flickr8k.yaml           a collection of your own
#   snakemake all --cores 2 --report report.html                        what a finished run has made, and how
#
# Only this file knows where artefacts lie. A rule's `slice` is its part of the configuration: a changed key
# reruns the rules whose slice holds it, and what depends on them. Jobs are shards, never images.

import json
import os
import shlex
import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError

from pipeline.config import default_path, read_mapping, validate
from pipeline.settings.section import DESCRIBED
from pipeline.specs.generators import GENERATORS, generator_spec
from pipeline.errors import JointspaceError, UsageError
from pipeline.plan.needs import NEEDS
from pipeline.plan.sizes import sizes_of
from pipeline.storage.atomic import publish_text
from pipeline.storage.leftovers import remove_leftovers
from pipeline.run.workflow import Workflow
from stages.cli import declared
from stages.closing import closing_lines


configfile: str(default_path())


try:
    for path in workflow.configfiles:
        read_mapping(path)  # Snakemake takes a key that is given twice without a word
    CONFIG = validate(config)
    MODELS = {name: CONFIG.model(name) for name in CONFIG.every_model()}
except UsageError as error:
    raise WorkflowError(str(error))


def quoted(path):
    """`path` as part of a rule's command: one word of the shell, whose braces mean nothing to Snakemake."""
    return shlex.quote(path).replace("{", "{{").replace("}", "}}")


# Inputs and outputs take paths as they are; commands take `..._Q`, and `:q` of whatever Snakemake fills in.
RUN = str(Path(CONFIG.results_root, CONFIG.name))
RESOLVED = f"{RUN}/config.yaml"
RUN_Q, RESOLVED_Q = quoted(RUN), quoted(RESOLVED)
PROGRAM = Path(sys.executable).with_name("jointspace")
JOINTSPACE = f"{quoted(str(PROGRAM))} --threads {{threads}}"
ROWS = list(CONFIG.models)
ENCODERS = [encoder.name for encoder in CONFIG.encoders]
STUDY = f"{RUN}/study"
DEMO = str(Path(CONFIG.data_root, "demo.json"))
BOXED = CONFIG.describe.splits if CONFIG.describe.boxes else ()
BENCHMARKS = f"{RUN}/benchmarks"
GPU = CONFIG.device != "cpu"


wildcard_constraints:
    part=r"\d{5}",
    split="|".join(DESCRIBED),
    protocol="all-sentences|first-sentence",
    generator="|".join(spec.name for spec in GENERATORS),


def slice_of(*sections, **values):
    """The part of the configuration that a rule depends on, as a string that Snakemake compares."""
    parts = {name: getattr(CONFIG, name) for name in sections}
    parts = {name: part.model_dump() if hasattr(part, "model_dump") else part for name, part in parts.items()}
    return json.dumps({**parts, **values}, sort_keys=True, default=str)


def sizes():
    """The sizes of the run: the manifest's where `ingest` is done, the demo's until then."""
    path = Path(f"{RUN}/manifest/manifest.json")
    return sizes_of(CONFIG, json.loads(path.read_text()) if path.exists() else None)


# What a job asks of its machine, in Snakemake's words; when it is tried again it asks for more.
RESOURCES = {
    "mem_mb": lambda wildcards, attempt, rulename: attempt * round(NEEDS[rulename].memory(sizes())),
    "disk_mb": lambda wildcards, rulename: 100 + round(NEEDS[rulename].disk(sizes())),
    "runtime": lambda wildcards, attempt, rulename: attempt * round(NEEDS[rulename].minutes(sizes())),
    "gpu": lambda wildcards, rulename: int(GPU and NEEDS[rulename].gpu is not None),
}


def each(option, paths):
    """The words of a command that give `option` once for each path."""
    return [word for path in paths for word in (option, path)]


def shown(path, caption, category):
    """An output that `snakemake --report` shows."""
    return report(path, caption=f"docs/captions/{caption}.rst", category=category)


FLOW = Workflow(CONFIG, declared(), lambda: checkpoints.ingest.get(), report, ancient)


def parts():
    """The numbers of the parts of a sharded stage, known once `ingest` is done."""
    return [f"{number:05d}" for number in range(len(FLOW.parts()))]


def every_part(folder):
    """An input function: the commits of all parts of what lies in `folder`, other wildcards as the rule has them."""
    return lambda wildcards: expand(f"{folder}/parts/{{part}}.json", part=parts(), **dict(wildcards.items()))


def every_region_shard(wildcards):
    names = CONFIG.regions.encoders
    return expand(f"{RUN}/regions/{{encoder}}/parts/{{part}}.json", encoder=names, part=parts()) if names else []


def names_of(wildcards):
    """What labels of boxes are called."""
    if CONFIG.demo.generate:
        return [DEMO]
    path = f"{CONFIG.data_root}/{CONFIG.phrases.names}"
    return [path] if os.path.isfile(path) else []


def generator_features(wildcards):
    """The feature shards that every generator takes."""
    return expand(f"{RUN}/features/{{encoder}}/parts/{{part}}.json", encoder=ENCODERS, part=parts())


def generator_space(wildcards):
    """The index whose joint space a generator stands on, if it does."""
    if not CONFIG.section(generator_spec(wildcards.generator)).in_space:
        return []
    if CONFIG.describe.space not in ROWS:
        raise WorkflowError(f"describe.space: {CONFIG.describe.space} is not among models ({', '.join(ROWS)}); add it")
    return [f"{RUN}/index/{CONFIG.describe.space}/card.json"]


def index_option(wildcards, input):
    return each("--index", map(os.path.dirname, input.index))


def generator_slice(wildcards):
    """What `train-generator` depends on."""
    spec = generator_spec(wildcards.generator)
    text = CONFIG.language_text.model_dump() if spec.text else {}
    return slice_of("seed", "image_view", text=text, own=CONFIG.section(spec).model_dump())


def snippets_of(wildcards):
    """The alignments that a generator of regions learns from."""
    spec = generator_spec(wildcards.generator)
    if not spec.regions:
        return []
    row = CONFIG.section(spec).snippets
    return [str(FLOW.layout.alignments(row, split).commit) for split in ("train", "dev")]


def snippets_options(wildcards, input):
    files = [path.removesuffix(".json") for path in input.snippets]
    return [*each("--snippets", files), "--regions", f"{RUN}/regions"] if files else []


def say_what_was_found():
    """Recalls, the report and a search to begin with, where this run was asked for these."""
    if {"summarise", "report"} & {job.rule.name for job in workflow.dag.jobs}:
        try:
            print("\n".join(closing_lines(Path(RUN), PROGRAM)), flush=True)
        except JointspaceError as error:
            logger.warning(str(error))


onsuccess:
    for warning in remove_leftovers(Path(RUN)):
        logger.warning(warning)
    say_what_was_found()


onstart:
    publish_text(Path(RESOLVED), yaml.safe_dump(dict(config), sort_keys=False))


localrules:
    all,
    gong,


rule all:
    input:
        *FLOW.targets,
        expand(
            f"{RUN}/evaluation/descriptions/{{generator}}.{{split}}.json",
            generator=CONFIG.generators,
            split=CONFIG.describe.splits,
        ),
        expand(f"{RUN}/evaluation/descriptions/{{generator}}.{{split}}.boxes.json", generator=CONFIG.generators, split=BOXED),


rule gong:
    input:
        f"{STUDY}/tables.md",


rule train_generator:
    input:
        f"{RUN}/manifest/manifest.json",
        every_part(f"{RUN}/text/tokens"),
        generator_features,
        vocabulary=f"{RUN}/text/tokens.json",
        index=generator_space,
        snippets=snippets_of,
        regions=lambda wildcards: every_region_shard(wildcards) if generator_spec(wildcards.generator).regions else [],
    output:
        f"{RUN}/generators/{{generator}}/model.json",
        f"{RUN}/generators/{{generator}}/model.safetensors",
    params:
        slice=generator_slice,
        index=index_option,
        snippets=snippets_options,
    threads: 8
    benchmark:
        f"{BENCHMARKS}/train_generator/{{generator}}.tsv"
    resources:
        **RESOURCES,
    shell:
        f"{JOINTSPACE} train-generator {{wildcards.generator:q}} --manifest {RUN_Q}/manifest --features {RUN_Q}/features"
        f" --tokens {RUN_Q}/text/tokens --vocabulary {{input.vocabulary:q}} {{params.index:q}} {{params.snippets:q}}"
        f" --config {RESOLVED_Q} --output {RUN_Q}/generators/{{wildcards.generator:q}}"


rule describe:
    input:
        generator_features,
        every_part(f"{RUN}/text/tokens"),
        f"{RUN}/generators/{{generator}}/model.json",
        vocabulary=f"{RUN}/text/tokens.json",
        index=generator_space,
    output:
        f"{RUN}/descriptions/{{generator}}.{{split}}/descriptions.json",
        shown(f"{RUN}/descriptions/{{generator}}.{{split}}/index.html", "descriptions", "Generated sentences"),
    params:
        slice=slice_of("seed", describe=CONFIG.describe.model_dump(exclude={"splits", "boxes", "meteor"})),
        index=index_option,
    threads: 8
    benchmark:
        f"{BENCHMARKS}/describe/{{generator}}.{{split}}.tsv"
    resources:
        **RESOURCES,
    shell:
        f"{JOINTSPACE} describe --generator {RUN_Q}/generators/{{wildcards.generator:q}} --manifest {RUN_Q}/manifest"
        f" --features {RUN_Q}/features --split {{wildcards.split:q}} --tokens {RUN_Q}/text/tokens"
        f" --vocabulary {{input.vocabulary:q}} {{params.index:q}} --config {RESOLVED_Q}"
        f" --output {RUN_Q}/descriptions/{{wildcards.generator:q}}.{{wildcards.split:q}}"


rule describe_boxes:
    input:
        every_region_shard,
        names_of,
        every_part(f"{RUN}/text/tokens"),
        f"{RUN}/generators/{{generator}}/model.json",
        vocabulary=f"{RUN}/text/tokens.json",
        index=generator_space,
    output:
        f"{RUN}/descriptions/{{generator}}.{{split}}.boxes/descriptions.json",
        shown(f"{RUN}/descriptions/{{generator}}.{{split}}.boxes/index.html", "boxes", "Generated sentences"),
    params:
        slice=slice_of("seed", describe=CONFIG.describe.model_dump(exclude={"splits", "boxes", "meteor"})),
        index=index_option,
    threads: 8
    benchmark:
        f"{BENCHMARKS}/describe_boxes/{{generator}}.{{split}}.tsv"
    resources:
        **RESOURCES,
    shell:
        f"{JOINTSPACE} describe --generator {RUN_Q}/generators/{{wildcards.generator:q}} --manifest {RUN_Q}/manifest"
        f" --regions {RUN_Q}/regions --split {{wildcards.split:q}} --tokens {RUN_Q}/text/tokens"
        f" --vocabulary {{input.vocabulary:q}} {{params.index:q}} --config {RESOLVED_Q}"
        f" --output {RUN_Q}/descriptions/{{wildcards.generator:q}}.{{wildcards.split:q}}.boxes"


rule evaluate_descriptions:
    input:
        f"{RUN}/descriptions/{{generator}}.{{split}}/descriptions.json",
        vocabulary=f"{RUN}/text/tokens.json",
        index=generator_space,
    output:
        f"{RUN}/evaluation/descriptions/{{generator}}.{{split}}.json",
    params:
        slice=slice_of("seed", "language_text", meteor=CONFIG.describe.meteor),
        index=index_option,
    benchmark:
        f"{BENCHMARKS}/evaluate_descriptions/{{generator}}.{{split}}.tsv"
    resources:
        **RESOURCES,
    shell:
        f"{JOINTSPACE} evaluate-descriptions {{input[0]:q}} --generator {RUN_Q}/generators/{{wildcards.generator:q}}"
        f" --manifest {RUN_Q}/manifest --features {RUN_Q}/features --tokens {RUN_Q}/text/tokens"
        f" --vocabulary {{input.vocabulary:q}} {{params.index:q}} --config {RESOLVED_Q} --output {{output:q}}"


rule evaluate_boxes:
    input:
        f"{RUN}/descriptions/{{generator}}.{{split}}.boxes/descriptions.json",
        names_of,
        every_part(f"{RUN}/text/parses"),
        generator_features,
        vocabulary=f"{RUN}/text/tokens.json",
    output:
        f"{RUN}/evaluation/descriptions/{{generator}}.{{split}}.boxes.json",
    params:
        slice=slice_of(names=CONFIG.phrases.names, meteor=CONFIG.describe.meteor),
    benchmark:
        f"{BENCHMARKS}/evaluate_boxes/{{generator}}.{{split}}.tsv"
    resources:
        **RESOURCES,
    shell:
        f"{JOINTSPACE} evaluate-descriptions {{input[0]:q}} --generator {RUN_Q}/generators/{{wildcards.generator:q}}"
        f" --manifest {RUN_Q}/manifest --features {RUN_Q}/features --tokens {RUN_Q}/text/tokens --parses {RUN_Q}/text/parses"
        f" --vocabulary {{input.vocabulary:q}} --config {RESOLVED_Q} --output {{output:q}}"


include: "stages/rules/images.smk"
include: "stages/rules/text.smk"
include: "stages/rules/models.smk"
include: "stages/rules/index.smk"
include: "stages/rules/results.smk"
include: "stages/rules/papers.smk"
include: "stages/rules/operations.smk"
include: "stages/rules/collections.smk"
