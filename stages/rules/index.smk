# Bundles: built from embeddings.


rule build_index:
    input: FLOW.input("build_index")
    output: FLOW.output("build_index")
    wildcard_constraints: **FLOW.constraints("build_index")
    params: **FLOW.params("build_index")
    threads: FLOW.threads("build_index")
    benchmark: FLOW.benchmark("build_index")
    resources: **FLOW.resources("build_index")
    shell: FLOW.shell("build_index")
