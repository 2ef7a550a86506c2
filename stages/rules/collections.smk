# The collection.


rule make_demo:
    input: reads("make_demo")
    output: LAYOUT.demo.commit
    params: decides=decides("make_demo")
    log: LOGS / "make_demo.log"
    benchmark: BENCHMARKS / "make_demo/all.tsv"
    threads: 8
    resources: mem_mb=megabytes(2000)
    shell: jointspace("make-demo")


rule ingest:
    input: reads("ingest")
    output: LAYOUT.manifest.commit
    params: decides=decides("ingest")
    log: LOGS / "ingest.log"
    benchmark: BENCHMARKS / "ingest/all.tsv"
    threads: 8
    resources: mem_mb=megabytes(2000)
    shell: jointspace("ingest")
