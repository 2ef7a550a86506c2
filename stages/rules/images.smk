# Features from elsewhere: the demo, other encoders, mapped and imported features, and regions.


rule make_demo:
    input: reads("make_demo")
    output: LAYOUT.demo.commit
    params: decides=decides("make_demo")
    log: LOGS / "make_demo.log"
    benchmark: BENCHMARKS / "make_demo/all.tsv"
    threads: 8
    resources: mem_mb=megabytes(2000)
    shell: jointspace("make-demo")


rule finetune:
    input: reads("finetune")
    output: LAYOUT.encoder("{encoder}").commit
    wildcard_constraints: encoder=any_of("finetune", "encoder")
    params: decides=decides("finetune")
    log: LOGS / "finetune.{encoder}.log"
    benchmark: BENCHMARKS / "finetune/{encoder}.tsv"
    threads: 8
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("finetune {wildcards.encoder:q}")


rule extract_more:
    """One of the encoders that only the study compares."""
    input: reads("extract")
    output: LAYOUT.features("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("extract", "encoder", but=PIXELS)
    params: decides=decides("extract")
    log: LOGS / "extract.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "extract_more/{encoder}.{part}.tsv"
    threads: 16
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("extract {wildcards.encoder:q} --part {wildcards.part}")


rule fit_map:
    input: reads("fit_map")
    output: LAYOUT.feature_map("{encoder}").commit
    wildcard_constraints: encoder=any_of("fit_map", "encoder")
    params: decides=decides("fit_map")
    log: LOGS / "fit_map.{encoder}.log"
    benchmark: BENCHMARKS / "fit_map/{encoder}.tsv"
    threads: 16
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("fit-map {wildcards.encoder:q}")


rule map_features:
    """In place of `extract`, which makes them again once the configuration maps them no more."""
    input: reads("map_features")
    output: LAYOUT.features("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("map_features", "encoder")
    params: decides=decides("map_features")
    log: LOGS / "map_features.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "map_features/{encoder}.{part}.tsv"
    threads: 8
    resources: mem_mb=megabytes(2000)
    shell: jointspace("map-features {wildcards.encoder:q} --part {wildcards.part}")


rule import_features:
    input: reads("import_features")
    output: LAYOUT.features("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("import_features", "encoder")
    params: decides=decides("import_features")
    log: LOGS / "import_features.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "import_features/{encoder}.{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("import-features {wildcards.encoder:q} --part {wildcards.part}")


rule extract_regions:
    input: reads("extract_regions")
    output: LAYOUT.regions("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("extract_regions", "encoder")
    params: decides=decides("extract_regions")
    log: LOGS / "extract_regions.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "extract_regions/{encoder}.{part}.tsv"
    threads: 8
    resources: mem_mb=megabytes(8000), gpu=GPU
    shell: on_gpu("extract-regions {wildcards.encoder:q} --part {wildcards.part}")


rule pool_regions:
    input: reads("pool_regions")
    output: LAYOUT.features("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("pool_regions", "encoder")
    params: decides=decides("pool_regions")
    log: LOGS / "pool_regions.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "pool_regions/{encoder}.{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(3000)
    shell: jointspace("pool-regions {wildcards.encoder:q} --part {wildcards.part}")
