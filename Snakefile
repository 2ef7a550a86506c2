# From photographs and captions to a searchable index: one rule a stage, one command a rule.
#
#   snakemake all --cores 2                                             the demo, into results/demo
#   snakemake all --cores 2 --configfile config/flickr8k.yaml           a collection of your own
#   snakemake all -n, snakemake --rulegraph                             what would run, and how it hangs together
#   snakemake all --cores 2 --report report.html                        what a finished run has made, and how

import yaml

from pipeline.config.loading import default_path
from pipeline.storage.batch import publish_text
from stages.closing import close
from stages.requirements import require_all


configfile: str(default_path())


include: "stages/rules/common.smk"


wildcard_constraints:
    part=r"\d{5}",


onstart:
    try:
        require_all(THIS_RUN, STAGES)
    except JointspaceError as error:
        raise WorkflowError(str(error))
    # Where commands find it.
    publish_text(LAYOUT.config, yaml.safe_dump(dict(config), sort_keys=False))


onsuccess:
    for warning in close(THIS_RUN, STARTED):
        logger.warning(warning)


localrules:
    all,


rule all:
    input: [wanted(stage) for stage in STAGES]


include: "stages/rules/collections.smk"
include: "stages/rules/images.smk"
include: "stages/rules/text.smk"
include: "stages/rules/models.smk"
include: "stages/rules/index.smk"
include: "stages/rules/results.smk"
include: "stages/rules/papers.smk"
