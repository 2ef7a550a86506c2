# From photographs and sentences to a searchable index: one rule a stage, one command a rule.
#
#   snakemake all --cores 2                                             the demo, into results/demo
#   snakemake all --cores 2 --configfile config/flickr8k.yaml           a collection of your own
#   snakemake all --cores 2 --report report.html                        what a finished run has made, and how
#
# The rules stand in stages/rules. What a rule reads, writes, needs and depends on is what the declaration of its stage
# says, and pipeline/run/workflow.py tells it to Snakemake: a changed key, or a higher version, reruns what it decides.

from snakemake.exceptions import WorkflowError

from pipeline.config import default_path
from pipeline.errors import JointspaceError
from pipeline.run.workflow import Workflow
from stages.catalogue import declared
from stages.closing import close
from stages.requirements import require_all


configfile: str(default_path())


try:
    FLOW = Workflow.of(config, workflow.configfiles, declared(), lambda: checkpoints.ingest.get(), report, ancient)
except JointspaceError as error:
    raise WorkflowError(str(error))


wildcard_constraints:
    part=r"\d{5}",


onstart:
    FLOW.start(config)
    try:
        require_all(FLOW.run, FLOW.stages)
    except JointspaceError as error:
        raise WorkflowError(str(error))


onsuccess:
    for warning in close(FLOW.run, FLOW.started):
        logger.warning(warning)


localrules:
    all,
    gong,


rule all:
    input:
        *FLOW.targets,


include: "stages/rules/collections.smk"
include: "stages/rules/images.smk"
include: "stages/rules/text.smk"
include: "stages/rules/models.smk"
include: "stages/rules/index.smk"
include: "stages/rules/results.smk"
include: "stages/rules/papers.smk"
include: "stages/rules/operations.smk"


rule gong:
    input:
        rules.tabulate.output,
        rules.show_transfer.output,
