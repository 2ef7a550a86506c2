"""Features of many regions from one activation map per image: region-of-interest alignment."""

import copy

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from pipeline.errors import UsageError
from pipeline.images.backbones import fold_batch_norms
from pipeline.images.networks import NetworkEncoder

PROBE_SIDE = 224
"""Side in pixels of an image whose map has more than one cell in every network."""
POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
POOL_FUNCTIONS = (functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d, torch.mean, "mean")


class RegionEncoder(nn.Module):
    """Maps pixels (n, height, width, 3) uint8 and boxes (n, k, 4), in [0, 1], to features (n, k, dim) float32.

    `trunk` computes the map, whose bilinear interpolation is integrated exactly over `bins` x `bins` parts of each box:
    RoIAlign (He et al. 2017) with infinitely many samples. The layer `average` is one bin; `head` computes fc6 and fc7
    from the bins.
    """

    def __init__(
        self,
        encoder: NetworkEncoder,
        trunk: fx.GraphModule,
        head: fx.GraphModule,
        bins: int,
    ) -> None:
        super().__init__()
        self.encoder, self.trunk, self.head, self.bins = encoder, trunk, head, bins

    def forward(self, pixels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        features = self._features(self._maps(pixels), boxes)
        if not self.encoder.flip:
            return features
        mirrored = torch.stack([1 - boxes[..., 2], boxes[..., 1], 1 - boxes[..., 0], boxes[..., 3]], dim=-1)
        return (features + self._features(self._maps(pixels.flip(2)), mirrored)) / 2

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.trunk(self.encoder.normalise(pixels)).float()

    def _features(self, maps: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        pooled = pool_regions(maps, boxes, self.bins)
        if self.bins == 1:
            return pooled[:, :, :, 0, 0]
        rows = pooled.flatten(0, 1).to(next(self.head.parameters(), maps).dtype)
        return self.head(rows).float().reshape(*boxes.shape[:2], -1)

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "RegionEncoder":
        """A faster copy on `device`, in `dtype`, in fewer passes."""
        encoder = self.encoder.optimised(device, dtype)
        trunk = fold_batch_norms(copy.deepcopy(self.trunk)).to(device, dtype, memory_format=torch.channels_last)
        return RegionEncoder(encoder, trunk, copy.deepcopy(self.head).to(device, dtype), self.bins)


def region_encoder(encoder: NetworkEncoder) -> RegionEncoder:
    """`encoder` with its body split at its activation map. Raises UsageError if it has none."""
    average, side = encoder.spec.layer == "average", encoder.spec.preprocessing.side
    trunk, head, extent = split(encoder.body, max(side, PROBE_SIDE) if average else side)
    return RegionEncoder(encoder, trunk, head, 1 if average else extent)


def split(body: fx.GraphModule, side: int) -> tuple[fx.GraphModule, fx.GraphModule, int]:
    """The part of `body` before its last pooling to a fixed size, the rest, and the side of the map between them for
    images of `side` x `side` pixels. Both parts share the tensors of `body`."""
    body = fx.GraphModule(body, copy.deepcopy(body.graph))
    with torch.inference_mode():
        ShapeProp(body).propagate(torch.zeros(1, 3, side, side, dtype=next(body.parameters()).dtype))
    # The last nodes, in order, that form a single chain to the output.
    chain = [next(node for node in body.graph.nodes if node.op == "output").all_input_nodes[0]]
    while len(chain[-1].all_input_nodes) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    chain.reverse()
    pools = [node for node in chain if _pools(body, node)]
    maps = [node for node in chain if _is_map(node)]
    border = pools[0].args[0] if pools else (maps[-1] if maps else None)
    if border is None or not _is_map(border):
        raise UsageError("roi-align needs a network with a map of activations; set regions.features to crops")
    trunk, head, rest = fx.Graph(), fx.Graph(), chain[chain.index(border) + 1 :]
    copies: dict[fx.Node, fx.Node] = {}
    for node in body.graph.nodes:
        if node.op != "output" and node not in rest:
            copies[node] = trunk.node_copy(node, copies.__getitem__)
    trunk.output(copies[border])
    copies = {border: head.placeholder("map")}
    for node in rest:
        copies[node] = head.node_copy(node, copies.__getitem__)
    head.output(copies[chain[-1]])
    return fx.GraphModule(body, trunk), fx.GraphModule(body, head), border.meta["tensor_meta"].shape[-1]


def _pools(body: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(body.get_submodule(node.target), POOLS)
    return node.target in POOL_FUNCTIONS


def _is_map(node: fx.Node) -> bool:
    shape = node.meta["tensor_meta"].shape if "tensor_meta" in node.meta else ()
    return node.op != "placeholder" and len(shape) == 4 and shape[-1] > 1


def pool_regions(maps: torch.Tensor, boxes: torch.Tensor, bins: int) -> torch.Tensor:
    """(n, k, channels, bins, bins): means of maps (n, channels, h, w) over parts of boxes (n, k, 4), in [0, 1].

    A cell's value is that of its centre; the map is bilinear between the centres and constant beyond the outermost.
    The interpolation is separable, so all regions of an image are one matrix product.
    """
    height, width = maps.shape[-2:]
    across = cell_weights(boxes[..., 0] * width, boxes[..., 2] * width, bins, width)
    down = cell_weights(boxes[..., 1] * height, boxes[..., 3] * height, bins, height)
    weights = torch.einsum("nkyh,nkxw->nkyxhw", down, across).flatten(4).flatten(1, 3)
    cells = maps.permute(0, 2, 3, 1).flatten(1, 2)
    pooled = torch.bmm(weights, cells).unflatten(1, (boxes.shape[1], bins, bins))
    return pooled.permute(0, 1, 4, 2, 3)


def cell_weights(start: torch.Tensor, stop: torch.Tensor, bins: int, cells: int) -> torch.Tensor:
    """(..., bins, cells): the weight of each cell in the mean over each of `bins` equal parts of [start, stop).

    Cell i covers [i, i + 1); the weights of a part sum to 1.
    """
    edges = start[..., None] + (stop - start)[..., None] * torch.linspace(0, 1, bins + 1, device=start.device)
    low, high = (edges - 0.5)[..., :-1], (edges - 0.5)[..., 1:]
    last = cells - 1
    centres = torch.arange(cells, device=start.device, dtype=start.dtype)
    below, above = (_hat_integral(edge[..., None].clamp(0, last) - centres) for edge in (low, high))
    weights = above - below
    weights[..., 0] += high.clamp(max=0) - low.clamp(max=0)
    weights[..., -1] += high.clamp(min=last) - low.clamp(min=last)
    return weights / (high - low).clamp(min=1e-9)[..., None]


def _hat_integral(x: torch.Tensor) -> torch.Tensor:
    """The integral from -1 to x of the hat function max(0, 1 - |t|)."""
    x = x.clamp(-1, 1)
    return 0.5 + x - x * x.abs() / 2
