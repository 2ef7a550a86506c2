"""Stages that are short do not import torch where there can be no GPU, and do all the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from made_up import MADE_BY, THINGS, features_of, make_run, run_command

from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest

ROOT = Path(__file__).parents[2]
COUNTED = """
import importlib, json, sys
from pipeline import device, runtime

runtime.configure()
device.may_have_gpu = lambda: False
for module, options in json.loads(sys.argv[1]):
    importlib.import_module(module).command.main(options, standalone_mode=False)
    print(module, "torch" in sys.modules)
"""


def test_they_do_without_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids]).astype(np.float16)
        made_from = {"inputs": {**MADE_BY, "images": rows.fingerprints["images"]}}
        write_features(run / f"features/colour/shard-{number:05d}.h5", features, ids, "made up", made_from)
    about = ["--manifest", run / "manifest"]
    run_command("encode_sentences", *about, "--vocabulary", run / "vocabulary.json", "--output", run / "tfidf")
    given = [*about, "--features", run / "features", "--tfidf", run / "tfidf"]
    moments = [*given, "--pairs", "target", "--folds", 1, "--encoder", "colour", "--output", run / "moments"]
    nearest = ["--gallery", "images", "--queries", 9, "--neighbours", 4, "--output", run / "nearest.h5"]
    commands = {
        "stages.models.accumulate": moments,
        "stages.models.embed": [*given, "--model", run / "model", "--output", run / "embedded"],
        "stages.index.ground_truth": [*about, "--embeddings", run / "embedded", *nearest],
    }
    told = json.dumps([(module, list(map(str, options))) for module, options in commands.items()])
    result = subprocess.run([sys.executable, "-c", COUNTED, told], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{module} False" for module in commands]
