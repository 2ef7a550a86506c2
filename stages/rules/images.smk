# Images become features, and regions of them.


rule prepare_encoder:
    input: FLOW.input("prepare_encoder")
    output: FLOW.output("prepare_encoder")
    wildcard_constraints: **FLOW.constraints("prepare_encoder")
    params: **FLOW.params("prepare_encoder")
    threads: FLOW.threads("prepare_encoder")
    benchmark: FLOW.benchmark("prepare_encoder")
    resources: **FLOW.resources("prepare_encoder")
    shell: FLOW.shell("prepare_encoder")


rule finetune:
    input: FLOW.input("finetune")
    output: FLOW.output("finetune")
    wildcard_constraints: **FLOW.constraints("finetune")
    params: **FLOW.params("finetune")
    threads: FLOW.threads("finetune")
    benchmark: FLOW.benchmark("finetune")
    resources: **FLOW.resources("finetune")
    shell: FLOW.shell("finetune")


rule extract:
    input: FLOW.input("extract")
    output: FLOW.output("extract")
    wildcard_constraints: **FLOW.constraints("extract")
    params: **FLOW.params("extract")
    threads: FLOW.threads("extract")
    benchmark: FLOW.benchmark("extract")
    resources: **FLOW.resources("extract")
    shell: FLOW.shell("extract")


rule import_features:
    input: FLOW.input("import_features")
    output: FLOW.output("import_features")
    wildcard_constraints: **FLOW.constraints("import_features")
    params: **FLOW.params("import_features")
    threads: FLOW.threads("import_features")
    benchmark: FLOW.benchmark("import_features")
    resources: **FLOW.resources("import_features")
    shell: FLOW.shell("import_features")


rule extract_regions:
    input: FLOW.input("extract_regions")
    output: FLOW.output("extract_regions")
    wildcard_constraints: **FLOW.constraints("extract_regions")
    params: **FLOW.params("extract_regions")
    threads: FLOW.threads("extract_regions")
    benchmark: FLOW.benchmark("extract_regions")
    resources: **FLOW.resources("extract_regions")
    shell: FLOW.shell("extract_regions")


rule show_regions:
    input: FLOW.input("show_regions")
    output: FLOW.output("show_regions")
    wildcard_constraints: **FLOW.constraints("show_regions")
    params: **FLOW.params("show_regions")
    threads: FLOW.threads("show_regions")
    benchmark: FLOW.benchmark("show_regions")
    resources: **FLOW.resources("show_regions")
    shell: FLOW.shell("show_regions")


rule pool_regions:
    input: FLOW.input("pool_regions")
    output: FLOW.output("pool_regions")
    wildcard_constraints: **FLOW.constraints("pool_regions")
    params: **FLOW.params("pool_regions")
    threads: FLOW.threads("pool_regions")
    benchmark: FLOW.benchmark("pool_regions")
    resources: **FLOW.resources("pool_regions")
    shell: FLOW.shell("pool_regions")


rule learn_components:
    input: FLOW.input("learn_components")
    output: FLOW.output("learn_components")
    wildcard_constraints: **FLOW.constraints("learn_components")
    params: **FLOW.params("learn_components")
    threads: FLOW.threads("learn_components")
    benchmark: FLOW.benchmark("learn_components")
    resources: **FLOW.resources("learn_components")
    shell: FLOW.shell("learn_components")


rule reduce_regions:
    input: FLOW.input("reduce_regions")
    output: FLOW.output("reduce_regions")
    wildcard_constraints: **FLOW.constraints("reduce_regions")
    params: **FLOW.params("reduce_regions")
    threads: FLOW.threads("reduce_regions")
    benchmark: FLOW.benchmark("reduce_regions")
    resources: **FLOW.resources("reduce_regions")
    shell: FLOW.shell("reduce_regions")
