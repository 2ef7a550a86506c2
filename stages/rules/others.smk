# Off the road: features and sentences from elsewhere, regions, trees, trained models, generators, the papers' tables.
# The rule of every such stage follows from its declaration: what a job is of, reads and writes, and what it needs.


def add_rule(stage):
    """In a function, since the running job evaluates `shell` again, after the loop."""
    names = [f"{{{name}}}" for name in stage.names]
    part = ["{part}"] if stage.sharded else []

    rule:
        name: stage.name
        input: reads(stage.name)
        output: writes(stage, names)
        wildcard_constraints: **{name: any_of(stage.name, name) for name in stage.names}
        params: decides=decides(stage.name)
        log: LOGS / ".".join([stage.name, *names, *part, "log"])
        benchmark: BENCHMARKS / stage.name / ".".join([*(names + part or ["all"]), "tsv"])
        threads: stage.threads
        resources: mem_mb=memory(stage.name), **({"gpu": GPU} if stage.gpu else {})
        shell: call(stage)


for stage in STAGES.values():
    if stage.name != "extract" and not workflow.is_rule(stage.name):
        add_rule(stage)
