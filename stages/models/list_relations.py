"""`list-relations`: the matrices that models have for the relations of dependency trees, by their norms."""

from pipeline.run import Job, Run, Stage


def list_relations(run: Run, job: Job) -> None:
    """List the Frobenius norm of each relation's matrix, the greatest first (Socher et al. 2014, section 6.7)."""
    import numpy as np

    from pipeline.config.registry.stored import restore
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_labels

    labels = read_labels(run.layout.labels.path)
    models, inputs = {}, {"labels": labels["fingerprint"]}
    for name in _models(run.config):
        stored, folder = run.model(name), run.layout.model(name).path
        require_same("label table", {str(folder): stored.details["labels"], str(run.root): labels["fingerprint"]})
        model = restore(stored.details["registered"], stored.settings, stored.tensors, folder)
        norms = model.network.sentences.norms()
        models[name] = [
            {"relation": labels["relations"][row], "count": labels["relation_counts"][row], "norm": float(norms[row])}
            for row in np.argsort(-norms)
            if np.isfinite(norms[row])
        ]
        inputs[name] = stored.fingerprint
    publish_record(job.path, {"models": models, "inputs": inputs, "fingerprint": job.fingerprint})


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
