"""Stages that are short do not import torch where there can be no GPU, and do all the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from made_up import THINGS, by_colour, features_of, make_run, write_config

from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest

ROOT = Path(__file__).parents[2]
COUNTED = """
import json, sys
from pipeline import device, runtime

runtime.configure()
device.may_have_gpu = lambda: False
from stages.cli import cli

for name, options in json.loads(sys.argv[1]):
    cli.get_command(None, name).main(options, standalone_mode=False)
    print(name, "torch" in sys.modules)
"""


def test_they_do_without_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids]).astype(np.float16)
        write_features(run / f"features/colour/shard-{number:05d}.h5", features, ids, by_colour(run), {})
    write_config(run, {"models": ["ncca"]})
    given = ["--gallery", "images", "--queries", 9, "--neighbours", 4, "--output", run / "nearest.h5"]
    commands = {
        "encode_sentences": ["--run", run],
        "accumulate": ["target", "--run", run],
        "embed": ["ncca", "--run", run, "--again"],
        "ground_truth": ["ncca", "--run", run, *given],
    }
    told = json.dumps([(name, list(map(str, options))) for name, options in commands.items()])
    result = subprocess.run([sys.executable, "-c", COUNTED, told], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{name} False" for name in commands]
