"""`simulate-documents`: weak texts made from sentences, to see what a method does as they get worse."""

from pipeline.run import Job, Run, stage


@stage(
    version=3,
    choices=lambda config: [(name,) for name, chosen in config.documents.items() if chosen.simulate is not None],
    keys=lambda config, documents: {
        "seed": config.seed,
        "splits": config.auxiliary.splits,
        "simulate": config.documents[documents].simulate.model_dump(),
    },
    reads=lambda config, layout, documents: [layout.manifest],
    writes=lambda layout, documents: layout.simulated(documents),
)
def simulate_documents(run: Run, job: Job, documents: str) -> None:
    """Simulate titles, tags and descriptions from captions, with the noise of `documents.NAME.simulate`."""
    from pipeline.collections.weakening import simulate
    from pipeline.storage.tables import write_table

    manifest, settings = run.manifest, run.config
    texts = manifest.sentences.filter(manifest.among(settings.auxiliary.splits)[manifest.sentence_images])

    noise = settings.documents[documents].simulate
    table = simulate(texts["image_id"].to_numpy(), texts["text"].to_pylist(), noise, settings.seed)

    details = {"documents": documents}
    write_table(job.path, "simulated-documents", table, provenance=job.provenance, details=details)
