# The tables of the papers.


rule tabulate:
    input: FLOW.input("tabulate")
    output: FLOW.output("tabulate")
    wildcard_constraints: **FLOW.constraints("tabulate")
    params: **FLOW.params("tabulate")
    threads: FLOW.threads("tabulate")
    benchmark: FLOW.benchmark("tabulate")
    resources: **FLOW.resources("tabulate")
    shell: FLOW.shell("tabulate")


rule show_transfer:
    input: FLOW.input("show_transfer")
    output: FLOW.output("show_transfer")
    wildcard_constraints: **FLOW.constraints("show_transfer")
    params: **FLOW.params("show_transfer")
    threads: FLOW.threads("show_transfer")
    benchmark: FLOW.benchmark("show_transfer")
    resources: **FLOW.resources("show_transfer")
    shell: FLOW.shell("show_transfer")


rule reproduce:
    input: FLOW.input("reproduce")
    output: FLOW.output("reproduce")
    wildcard_constraints: **FLOW.constraints("reproduce")
    params: **FLOW.params("reproduce")
    threads: FLOW.threads("reproduce")
    benchmark: FLOW.benchmark("reproduce")
    resources: **FLOW.resources("reproduce")
    shell: FLOW.shell("reproduce")


rule study:
    input: FLOW.input("study")
    output: FLOW.output("study")
    wildcard_constraints: **FLOW.constraints("study")
    params: **FLOW.params("study")
    threads: FLOW.threads("study")
    benchmark: FLOW.benchmark("study")
    resources: **FLOW.resources("study")
    shell: FLOW.shell("study")


rule sweep:
    input: FLOW.input("sweep")
    output: FLOW.output("sweep")
    wildcard_constraints: **FLOW.constraints("sweep")
    params: **FLOW.params("sweep")
    threads: FLOW.threads("sweep")
    benchmark: FLOW.benchmark("sweep")
    resources: **FLOW.resources("sweep")
    shell: FLOW.shell("sweep")
