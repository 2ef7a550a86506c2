"""The hierarchical multimodal LSTM: sentences with their noun phrases, images with their regions (Niu et al. 2017)."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import move_tensors, upload
from pipeline.compute.ragged import Ragged, runs
from pipeline.config.models import DenseTrainSettings
from pipeline.models.joint_model import RegionBlock, RegionSource, Settings, WordForms, read_setting
from pipeline.models.neural.losses import DenseObjective, PhrasePairs, Scores
from pipeline.models.neural.networks import GlobalNetwork, Score, SentenceEncoder, initial, set_gate_bias
from pipeline.models.neural.task import WHOLE, RegionView, TrainingTask, required
from pipeline.models.neural.training import Training
from pipeline.models.neural.tree_levels import Levels, forest, level
from pipeline.models.neural.tree_rnn import KeptTrees, by_kind
from pipeline.models.neural.word_models import BLOCK, GlobalModel
from pipeline.text.trees import Trees


class HierarchicalRecurrence(torch.autograd.Function):
    """The hidden states (total, K) float32 of all nodes, rows as in `levels`.

    apply(levels, inputs, u): `inputs` (total, 4 K) float32 are W x_j + b of the gates i, o, u, f side by side; u[1]
    (4 K, K) multiplies the states of children that are noun phrases, u[0] those of the others. Products are computed in
    the dtype of `u`, all else in float32. A child's product is added to its parent's sums at once, so that h-hat and
    h-bar of eq. 2 are never stored.
    """

    @staticmethod
    def forward(ctx: KeptTrees, levels: Levels, inputs: Tensor, u: Tensor) -> Tensor:
        k = u.shape[2]
        gates, turned = inputs[:, : 3 * k].clone(), u.mT.unbind()
        cells, hidden, forgets = (inputs.new_zeros(len(inputs), k) for _ in range(3))
        for start, joined, stop, groups in levels.levels:
            rows, edges = slice(start, stop), slice(start, joined)
            gates[rows, : 2 * k].sigmoid_()
            gates[rows, 2 * k :].tanh_()
            i, o, new = gates[rows].chunk(3, dim=1)
            cells[rows] += i * new
            hidden[rows] = o * cells[rows].tanh()
            if groups:
                above = levels.parents[edges]
                sums = by_kind(hidden[edges], turned, groups, u.dtype)
                forgets[edges] = (inputs[above, 3 * k :] + sums[:, 3 * k :]).sigmoid_()
                gates.index_add_(0, above, sums[:, : 3 * k])
                cells.index_add_(0, above, forgets[edges] * cells[edges])
        ctx.save_for_backward(u, gates, cells, hidden, forgets)
        ctx.levels = levels
        return hidden

    @staticmethod
    def backward(ctx: KeptTrees, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_states,) = gradients
        u, gates, cells, hidden, forgets = ctx.saved_tensors
        levels = ctx.levels
        k, straight = u.shape[2], u.unbind()
        d_hidden, d_cells = d_states.clone(), torch.zeros_like(cells)
        d_inputs, d_sums = gates.new_zeros(len(gates), 4 * k), gates.new_empty(len(gates), 4 * k)
        d_gates = d_inputs[:, : 3 * k]
        for start, joined, stop, groups in reversed(levels.levels):
            rows, edges = slice(start, stop), slice(start, joined)
            if groups:
                above, f = levels.parents[edges], forgets[edges]
                d_above = d_cells[above]
                d_forgets = d_above * cells[edges] * f * (1 - f)
                d_sums[edges, : 3 * k], d_sums[edges, 3 * k :] = d_gates[above], d_forgets
                d_inputs[:, 3 * k :].index_add_(0, above, d_forgets)
                d_hidden[edges] += by_kind(d_sums[edges], straight, groups, u.dtype)
                d_cells[edges] = d_above * f
            i, o, new = gates[rows].chunk(3, dim=1)
            through = cells[rows].tanh()
            d_cells[rows] += d_hidden[rows] * o * (1 - through.square())
            d_gates[rows, :k] = d_cells[rows] * new * i * (1 - i)
            d_gates[rows, k : 2 * k] = d_hidden[rows] * through * o * (1 - o)
            d_gates[rows, 2 * k :] = d_cells[rows] * i * (1 - new.square())
        d_u = torch.zeros_like(u)
        for kind, rows in levels.kinds:
            torch.mm(d_sums[rows].to(u.dtype).T, hidden[rows].to(u.dtype), out=d_u[kind])
        return None, d_inputs, d_u


class HierarchicalLSTM(SentenceEncoder):
    """The states of all nodes of phrase trees; words enter at the leaves.

    Niu et al. 2017 to code: W_w `words`, W `w` (4 K, d), b `bias`, U-bar `u`[0], U-hat `u`[1]; the gates are in the
    order i, o, u, f. A child with the label `noun_phrase` is a noun phrase.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, noun_phrase: int) -> None:
        """`words` (V + 1, d): the word vectors, the unknown word's last."""
        super().__init__()
        self.dropout, self.noun_phrase, self.precision = dropout, noun_phrase, torch.float32
        self.words = nn.Parameter(words)
        self.w, self.u = initial(4 * dimensions, words.shape[1]), initial(2, 4 * dimensions, dimensions)
        self.bias = nn.Parameter(torch.zeros(4 * dimensions))

    def arrange(self, trees: Trees) -> Levels:
        """Arrange `trees` for `forward`."""
        nodes = forest(trees, len(self.words) - 1)
        return level(nodes, (nodes.labels == self.noun_phrase).astype(int), counts=None)

    def forward(self, levels: Levels) -> Tensor:
        """(total, K) float32."""
        leaves = levels.words[: levels.levels[0].stop] if levels.levels else levels.words
        words = functional.dropout(functional.embedding(leaves, self.words), self.dropout, self.training)
        inner = self.bias.expand(len(levels.words) - len(leaves), -1)
        first = (words.to(self.precision) @ self.w.T.to(self.precision)).float() + self.bias
        return HierarchicalRecurrence.apply(levels, torch.cat([first, inner]), self.u.to(self.precision))


class Normalisation(nn.Module):
    """Batch normalisation with separate statistics for wholes (images, sentences) and parts (regions, phrases), because
    features of crops and of whole images have different means, but one gain and shift."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(dimensions)), nn.Parameter(torch.zeros(dimensions))
        self.wholes, self.parts = (nn.BatchNorm1d(dimensions, affine=False) for _ in range(2))

    def forward(self, x: Tensor, wholes: int) -> Tensor:
        """x (n, K), of which the first `wholes` are whole."""
        sides = ((self.wholes, x[:wholes]), (self.parts, x[wholes:]))
        normalised = [norm(part) for norm, part in sides if len(part)]
        return torch.cat(normalised) * self.gain + self.shift if normalised else x


class TwoBranches(GlobalNetwork):
    """The network of two branches, each of which is a linear map, batch normalisation and unit length (Niu et al. 2017,
    section 3.2.2); s = v . h.

    Paper to code: W_m `image_map` (K, D), for both images and regions; W_t `text_map` (K, K), for the states of roots
    and noun phrases. The biases are those of the normalisation. Our addition: with `geometry`, W_m is (K, D + 7) and
    also maps a region's geometry minus that of the whole image.
    """

    score = "cosine"
    mean: Tensor
    whole: Tensor

    def __init__(
        self, mean: Tensor, sentences: HierarchicalLSTM, dimensions: int, dropout: float, geometry: bool
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.sentences, self.dropout = sentences, dropout
        whole = torch.from_numpy(WHOLE) if geometry else mean.new_zeros(0)
        self.register_buffer("whole", whole, persistent=False)
        inputs = len(mean) + len(self.whole)
        self.image_map = nn.Parameter(torch.empty(dimensions, inputs).uniform_(-1, 1) / inputs**0.5)
        self.text_map = nn.Parameter(torch.eye(dimensions))
        self.image_norm, self.text_norm = Normalisation(dimensions), Normalisation(dimensions)

    def embed_images(self, x: Tensor) -> Tensor:
        """(n, K) of unit length from stacked features (n, D)."""
        return self._embed_views(self._centre_images(x), len(x))

    def embed_regions(self, x: Tensor) -> Tensor:
        """(r, K) of unit length from the region view (r, D), or (r, D + 7) with `geometry`."""
        return self._embed_views(self._centre_regions(x), 0)

    def _centre_images(self, x: Tensor) -> Tensor:
        return functional.pad(x - self.mean, (0, len(self.whole)))

    def _centre_regions(self, x: Tensor) -> Tensor:
        return x - torch.cat([self.mean, self.whole])

    def _embed_views(self, x: Tensor, images: int) -> Tensor:
        """(n, K) of unit length from centred features, of `images` images and then of regions."""
        x = functional.dropout(x, self.dropout, self.training)
        return functional.normalize(self.image_norm(x @ self.image_map.T, images), dim=1)

    def embed_nodes(self, levels: Levels, rows: Tensor, roots: int) -> Tensor:
        """(p, K) of unit length: the nodes in `rows` (p,) of `levels`, of which the first `roots` are roots."""
        states = functional.dropout(self.sentences(levels)[rows], self.dropout, self.training)
        return functional.normalize(self.text_norm(states @ self.text_map.T, roots), dim=1)

    def embed_sentences(self, levels: Levels) -> Tensor:
        """(n, K) of unit length: the roots."""
        return self.embed_nodes(levels, levels.roots, len(levels.roots))

    def forward(self, x: Tensor, levels: Levels, pairs: PhrasePairs) -> Scores:
        """The scores of n images and sentences, and of the noun phrases' pairs."""
        n = len(x)
        h = self.embed_nodes(levels, torch.cat([levels.roots, pairs.rows]), n)
        v = self._embed_views(torch.cat([self._centre_images(x), self._centre_regions(pairs.regions)]), n)
        return Scores(v[:n] @ h[:n].T, v[n:] @ h[n:].T, pairs)


MAX_REGIONS = 1 << 16
"""Maximum number of regions that are embedded at once."""


@dataclass(frozen=True)
class Correspondences(Ragged):
    """The region of each noun phrase (Niu et al. 2017, section 3.3), for m sentences, sentence after sentence: `chosen`
    (p,) int64, the region's number in its image, and `confidence` (p,) float32, their similarity. Sentence i has
    offsets[i] to offsets[i + 1]."""

    chosen: Tensor
    confidence: Tensor
    offsets: np.ndarray


def noun_phrases(trees: Trees, noun_phrase: int) -> np.ndarray:
    """The nodes of `trees` with the label `noun_phrase` that are not the whole sentence, tree after tree."""
    return np.flatnonzero((trees.labels == noun_phrase) & (trees.parents >= 0) & (trees.words < 0))


def match(phrases: Tensor, images: np.ndarray, regions: Tensor, offsets: np.ndarray) -> tuple[Tensor, Tensor]:
    """The most similar region (p,) of each phrase's image, as its number there, and the similarity (p,).

    phrases (p, K) and regions (r, K) are unit vectors, images (p,) the image of each phrase; the regions of image i are
    offsets[i] to offsets[i + 1]. Region 0 (the whole image) is matched only if there is no other region.
    """
    lengths = np.diff(offsets)
    number = runs(np.zeros(len(lengths), np.int64), lengths)
    image = np.repeat(np.arange(len(lengths)), lengths)
    legal = (number > 0) | (lengths[image] == 1)
    allowed = upload((images[:, None] == image) & legal, phrases.device)
    confidence, best = (phrases @ regions.T).masked_fill(~allowed, -torch.inf).max(dim=1)
    return upload(number, best.device)[best], confidence


class HMLSTM(GlobalModel):
    """A sentence is the root of its phrase tree; training pulls noun phrases towards regions of the image."""

    sentence_view = "phrase-trees"

    @classmethod
    def make_network(
        cls, mean: Tensor, words: Tensor, dimensions: int, dropout: float, learned: Settings, score: Score
    ) -> TwoBranches:
        """Make the network; `learned` has the label `noun_phrase`, and whether regions have `geometry`."""
        sentences = HierarchicalLSTM(words, dimensions, dropout, read_setting(learned, "noun_phrase", int))
        return TwoBranches(mean, sentences, dimensions, dropout, bool(learned.get("geometry", False)))

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"noun_phrase": task.noun_phrase, "geometry": required(task.region_view).geometry}

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """Return the training of figure 3: first sentences alone, then correspondences and embedding in turn."""
        model, train, settings = cls.untrained(task).to(task.device), task.train, task.own_settings(DenseTrainSettings)
        matches = model.no_correspondences(train.sentences)

        def correspond(epoch: int) -> None:
            since = epoch - settings.simplified_epochs
            if since < 0 or since % settings.correspondence_epochs:
                return
            model.network.eval()
            now = model.correspond(train.sentences, train.owners, required(train.regions), required(task.region_view))
            matches.chosen.copy_(now.chosen)
            matches.confidence.copy_(now.confidence)

        norms = {name: b for name, b in model.network.named_buffers() if name.startswith(("image_norm", "text_norm"))}
        plan = task.plan(
            model.network,
            lambda rows: model.draw(task, matches, rows),
            model.judge(task.dev),
            model.reloaded,
            DenseObjective(task.objective, settings.phrase_share, settings.phrase_contrasts),
        )
        extra_state = {**norms, "chosen": matches.chosen, "confidence": matches.confidence}
        return Training(replace(plan, extra_state=extra_state, before_epoch=correspond))

    def draw(
        self, task: TrainingTask, matches: "Correspondences", rows: np.ndarray
    ) -> tuple[Tensor, Levels, PhrasePairs]:
        """Make the network's arguments from the training pairs `rows`."""
        trees, owners = task.train.sentences.take(rows), task.train.owners[rows]
        levels = self.arrange(trees)
        images, image_of = np.unique(owners, return_inverse=True)
        block = required(task.train.regions).packed(images)
        places, counts = matches.positions(rows), matches.lengths[rows]
        image = np.repeat(image_of, counts)
        chosen = block.offsets[image] + _or_any(matches.chosen[places].numpy(), np.diff(block.offsets)[image])
        pairs = PhrasePairs(
            phrase_rows(levels, trees, self.network.sentences),
            torch.from_numpy(required(task.region_view).stack(block, chosen, task.view)),
            matches.confidence[places].clamp(min=0),
            torch.from_numpy(np.repeat(owners, counts)),
            torch.from_numpy(chosen),
        )
        return task.draw_images(rows), levels, pairs

    @classmethod
    def untrained(cls, task: TrainingTask) -> Self:
        model = super().untrained(task)
        set_gate_bias(model.network.sentences.bias, 3, task.own_settings(DenseTrainSettings).forget_bias)
        return model

    def arrange(self, sentences: "WordForms") -> Levels:
        return self.network.sentences.arrange(sentences)

    def embed_regions(self, block: RegionBlock, view: RegionView | None = None) -> np.ndarray:
        """Embed the regions of a block, (r, c) float32. Their features are side by side as in `view`, by default the
        model's encoders in its order."""
        view = view or RegionView(self.view, bool(self.learned.get("geometry", False)))
        x = view.stack(block, through=self.view)
        embed = self.network.embed_regions
        return self.in_blocks(lambda rows: embed(upload(x[rows], self.device)), len(x), "region", MAX_REGIONS)

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed the noun phrases of whole sentences, in the order of `noun_phrases`, (p, c) float32."""
        assert isinstance(phrases, Trees)

        def embed(rows: slice) -> Tensor:
            trees = phrases.take(np.arange(rows.start, rows.stop))
            levels = self.arrange(trees)
            arranged = move_tensors((levels, phrase_rows(levels, trees, self.network.sentences)), self.device)
            return self.network.embed_nodes(*arranged, roots=0)

        return self.in_blocks(embed, len(phrases), "sentence")

    def no_correspondences(self, sentences: Trees) -> Correspondences:
        """Return the initial correspondences: no region yet (-1), with no confidence."""
        nodes = noun_phrases(sentences, self.network.sentences.noun_phrase)
        offsets = np.searchsorted(nodes, sentences.offsets)
        return Correspondences(torch.full((len(nodes),), -1), torch.zeros(len(nodes)), offsets)

    def correspond(
        self, sentences: Trees, owners: np.ndarray, regions: RegionSource, view: RegionView
    ) -> Correspondences:
        """Find the best region of each noun phrase of `sentences` (m,) in their images `owners` (m,)."""
        matches = self.no_correspondences(sentences)
        with torch.inference_mode():
            for start in range(0, len(sentences), BLOCK):
                rows = np.arange(start, min(start + BLOCK, len(sentences)))
                images, image_of = np.unique(owners[rows], return_inverse=True)
                block = regions.packed(images)
                vectors = upload(self.embed_regions(block, view), self.device)
                phrases = upload(self.embed_phrases(sentences.take(rows)), self.device)
                places = slice(matches.offsets[rows[0]], matches.offsets[rows[-1] + 1])
                matches.chosen[places], matches.confidence[places] = match(
                    phrases, np.repeat(image_of, matches.lengths[rows]), vectors, block.offsets
                )
        return matches


def phrase_rows(levels: Levels, trees: Trees, encoder: HierarchicalLSTM) -> Tensor:
    """(p,) the rows of the noun phrases of `trees` in `levels`, in the order of `noun_phrases`."""
    row = torch.empty_like(levels.nodes)
    row[levels.nodes] = torch.arange(len(row))
    empty = np.cumsum(trees.lengths == 0)  # `levels` has a node for each empty tree
    phrases = noun_phrases(trees, encoder.noun_phrase)
    return row[torch.from_numpy(phrases + np.repeat(empty, trees.lengths)[phrases])]


def _or_any(chosen: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(p,) the regions `chosen`; where there is none yet (-1), any of the `counts` (p,) regions of the phrase's image
    but the whole, so that the parts' batch normalisation has the statistics of regions from the first epoch."""
    drawn = (torch.rand(len(chosen)).numpy() * (counts - 1)).astype(np.int64) + 1
    return np.where(chosen < 0, np.minimum(drawn, counts - 1), chosen)
