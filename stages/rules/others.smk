# Rules of all stages that the Snakefile does not list: precomputed vectors, regions, trees, trained models, generators,
# and the tables of the papers. Each rule is made from the declaration of its stage.


def add_rule(stage):
    """Add the rule of a stage.

    This is a function because the running job evaluates `shell` again, after the loop.
    """
    names = [f"{{{name}}}" for name in stage.names]
    also = rules.report.output if stage.name == "reproduce" else []  # the figures of the papers are in the report
    part = ["{part}"] if stage.sharded else []

    rule:
        name: stage.name
        input: reads(stage.name), also
        output: writes(stage, names)
        wildcard_constraints: **{name: any_of(stage.name, name) for name in stage.names}
        params: decides=decides(stage.name)
        log: LOGS / ".".join([stage.name, *names, *part, "log"])
        benchmark: BENCHMARKS / stage.name / ".".join([*(names + part or ["all"]), "tsv"])
        threads: threads(stage.name)
        resources: mem_mb=memory(stage.name), **({"gpu": gpus(stage.name)} if stage.gpu else {})
        shell: call(stage)


for stage in STAGES.values():
    if stage.name != "extract" and not workflow.is_rule(stage.name):
        add_rule(stage)
