# The collection.


rule make_demo:
    input: FLOW.input("make_demo")
    output: FLOW.output("make_demo")
    wildcard_constraints: **FLOW.constraints("make_demo")
    params: **FLOW.params("make_demo")
    threads: FLOW.threads("make_demo")
    benchmark: FLOW.benchmark("make_demo")
    resources: **FLOW.resources("make_demo")
    shell: FLOW.shell("make_demo")


checkpoint ingest:
    input: FLOW.input("ingest")
    output: FLOW.output("ingest")
    wildcard_constraints: **FLOW.constraints("ingest")
    params: **FLOW.params("ingest")
    threads: FLOW.threads("ingest")
    benchmark: FLOW.benchmark("ingest")
    resources: **FLOW.resources("ingest")
    shell: FLOW.shell("ingest")
