"""Feature shards that belong together."""

from pathlib import Path

import pytest
from made_up import make_run, retell, write_feature_shards

from pipeline.errors import IntegrityError
from pipeline.storage.gather import Features
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import shard_path


def test_shards_of_two_precisions_are_refused_by_name(tmp_path: Path) -> None:
    manifest, folder = Manifest(make_run(tmp_path) / "manifest"), tmp_path / "features"
    write_feature_shards(manifest, folder / "net")
    for number in range(manifest.n_shards):
        about = {"name": "net", "precision": "bfloat16" if number == 1 else "float32"}
        sidecar = shard_path(folder / "net", number)
        retell(sidecar.with_name(f"{sidecar.name}.json"), "details", "encoder", value=about)
    opened = Features(manifest, folder)
    opened.open("net", 0)
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5 was computed in bfloat16 and .*00000\.h5 in float32"):
        opened.open("net", 1)
