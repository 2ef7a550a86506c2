# What a run will take.


rule plan:
    input: FLOW.input("plan")
    output: FLOW.output("plan")
    wildcard_constraints: **FLOW.constraints("plan")
    params: **FLOW.params("plan")
    threads: FLOW.threads("plan")
    priority: 1
    benchmark: FLOW.benchmark("plan")
    resources: **FLOW.resources("plan")
    shell: FLOW.shell("plan")
