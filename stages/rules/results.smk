# Evaluations, descriptions, and the report.


rule evaluate:
    input: FLOW.input("evaluate")
    output: FLOW.output("evaluate")
    wildcard_constraints: **FLOW.constraints("evaluate")
    params: **FLOW.params("evaluate")
    threads: FLOW.threads("evaluate")
    benchmark: FLOW.benchmark("evaluate")
    resources: **FLOW.resources("evaluate")
    shell: FLOW.shell("evaluate")


rule summarise:
    input: FLOW.input("summarise")
    output: FLOW.output("summarise")
    wildcard_constraints: **FLOW.constraints("summarise")
    params: **FLOW.params("summarise")
    threads: FLOW.threads("summarise")
    benchmark: FLOW.benchmark("summarise")
    resources: **FLOW.resources("summarise")
    shell: FLOW.shell("summarise")


rule report:
    input: FLOW.input("report")
    output: FLOW.output("report")
    wildcard_constraints: **FLOW.constraints("report")
    params: **FLOW.params("report")
    threads: FLOW.threads("report")
    benchmark: FLOW.benchmark("report")
    resources: **FLOW.resources("report")
    shell: FLOW.shell("report")
