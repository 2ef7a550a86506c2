"""`reduce-regions`: the features of regions in fewer dimensions."""

from collections.abc import Callable

from pipeline.run import Job, Run, Stage


def reduce_regions(run: Run, encoder: str) -> Callable[[Job], None]:
    """Project the features of ENCODER's regions on their principal components, for models to read."""
    from pipeline.images.region_features import COMPONENTS, PrincipalComponents
    from pipeline.precision import to_float32
    from pipeline.storage.features import open_regions, to_stored
    from pipeline.storage.parameters import origin_of, read_parameters

    stored = read_parameters(run.layout.components(encoder).path, COMPONENTS)
    project, folder = PrincipalComponents(**stored.tensors), run.layout.regions(encoder).folder

    def make(job: Job) -> None:
        shard = open_regions(folder, job.number)
        names = [f"row {row} of {shard.path}" for row in range(len(shard["scores"]))]
        features = to_stored(project(to_float32(shard["features"])), run.config.extract.storage, names)
        origin = {**origin_of(shard.commit), "projection": stored.fingerprint}
        shard.with_features(job.path, features, job.provenance, {"origin": origin})

    return make


STAGE = Stage(
    reduce_regions,
    version=3,
    names=("encoder",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.regions.encoders if config.regions.reduced],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    reads=lambda config, layout, encoder: {
        "regions": layout.regions(encoder),
        "components": layout.components(encoder),
    },
    columns=("images",),
    writes=lambda layout, encoder: layout.regions(encoder, reduced=True),
)
