"""`list-relations`: the matrices that models have for the relations of dependency trees, by their norms."""

from pipeline.run import Job, Run, Stage


def list_relations(run: Run, job: Job) -> None:
    """List the Frobenius norm of each relation's matrix, the greatest first (Socher et al. 2014, section 6.7)."""
    import numpy as np

    from pipeline.specs.stored import restore
    from pipeline.storage.commit import publish_record
    from pipeline.storage.records import read_labels

    labels = read_labels(run.layout.labels.path)
    models = {}
    for name in _models(run.config):
        stored, folder = run.model(name), run.layout.model(name).path
        model = restore(stored.details["registered"], stored.settings, stored.tensors, folder)
        norms = model.network.sentences.norms()
        models[name] = [
            {"relation": labels["relations"][row], "count": labels["relation_counts"][row], "norm": float(norms[row])}
            for row in np.argsort(-norms)
            if np.isfinite(norms[row])
        ]
    publish_record(job.path, {"models": models}, provenance=job.provenance)


def _models(config) -> list[str]:
    return [name for name in config.models if config.model(name).spec.relations]


STAGE = Stage(
    list_relations,
    version=1,
    choices=lambda config: [()] if config.reproduce.trees and _models(config) else [],
    keys=lambda config: {"models": _models(config)},
    reads=lambda config, layout: {
        "labels": layout.labels,
        **{f"models/{name}": layout.model(name) for name in _models(config)},
    },
    writes=lambda layout: layout.relations,
)
