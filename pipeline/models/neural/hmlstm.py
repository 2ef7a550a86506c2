"""The hierarchical multimodal LSTM, which embeds sentences, noun phrases, images and regions (Niu et al. 2017)."""

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
from pipeline.models.neural.task import WHOLE_IMAGE_GEOMETRY, RegionView, TrainingTask, required
from pipeline.models.neural.training import Training
from pipeline.models.neural.tree_levels import Levels, arrange_levels, forest
from pipeline.models.neural.tree_rnn import KeptTrees, by_kind
from pipeline.models.neural.word_models import BLOCK_ROWS, GlobalModel
from pipeline.text.trees import Trees


class HierarchicalRecurrence(torch.autograd.Function):
    """The recurrence of Niu et al. 2017, eq. 2 to 8, over the nodes of trees, from the leaves to the roots.

    `apply(levels, inputs, u)` returns the hidden states (total, K) float32 of all nodes, K values for each node, with
    rows as in `levels`. `inputs` (total, 4 K) float32 are W x_j + b for the gates i, o, u and f of the paper, side by
    side, where x_j is the word vector of node j, or zero if the node has no word. u[1] (4 K, K) is multiplied by the
    states of children that are noun phrases, and u[0] (4 K, K) by the states of other children. Products are computed
    in the dtype of `u`, and everything else in float32. A child's product is immediately added to the sums of its
    parent, so that the sums h-hat and h-bar of eq. 2 are never stored.
    """

    @staticmethod
    def forward(ctx: KeptTrees, levels: Levels, inputs: Tensor, u: Tensor) -> Tensor:
        k = u.shape[2]
        gates = inputs[:, : 3 * k].clone()
        turned = u.mT.unbind()
        cells, hidden, forgets = (inputs.new_zeros(len(inputs), k) for _ in range(3))
        for start, joined, stop, groups in levels.levels:
            rows = slice(start, stop)
            edges = slice(start, joined)
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
        k = u.shape[2]
        straight = u.unbind()
        d_hidden = d_states.clone()
        d_cells = torch.zeros_like(cells)
        d_inputs = gates.new_zeros(len(gates), 4 * k)
        d_sums = gates.new_empty(len(gates), 4 * k)
        d_gates = d_inputs[:, : 3 * k]
        for start, joined, stop, groups in reversed(levels.levels):
            rows = slice(start, stop)
            edges = slice(start, joined)
            if groups:
                above = levels.parents[edges]
                f = forgets[edges]
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
    """The hierarchical LSTM of Niu et al. 2017, section 3.2.1: the states of all nodes of phrase trees.

    Words are inputs of the leaves. In the code, W_w is `words` (V + 1, d), W is `w` (4 K, d), b is `bias` (4 K,), U-bar
    is `u[0]` and U-hat is `u[1]` (4 K, K). The gates are in the order i, o, u, f. `noun_phrase` is the id of the label
    of noun phrases, as in Trees.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, noun_phrase: int) -> None:
        """Create the encoder with random weights and given word vectors.

        `words` (V + 1, d) has the vectors of the V words of the vocabulary, and in the last row the vector of the
        unknown word. `dimensions` is K, the number of values of the hidden state of a node. `dropout` is the share of
        values that are set to zero during training. `noun_phrase` is the id of the label of noun phrases, as in Trees.
        """
        super().__init__()
        self.dropout = dropout
        self.noun_phrase = noun_phrase
        self.precision = torch.float32
        self.words = nn.Parameter(words)
        self.w = initial(4 * dimensions, words.shape[1])
        self.u = initial(2, 4 * dimensions, dimensions)
        self.bias = nn.Parameter(torch.zeros(4 * dimensions))

    def arrange(self, trees: Trees) -> Levels:
        """Arrange the nodes of `trees` by their height, in the form that `forward` reads. An empty tree becomes a
        single node with the unknown word."""
        nodes = forest(trees, len(self.words) - 1)
        return arrange_levels(nodes, (nodes.labels == self.noun_phrase).astype(int), counts=None)

    def forward(self, levels: Levels) -> Tensor:
        """Compute the states of all nodes, (total, K) float32, with rows as in `levels`."""
        leaves = levels.words[: levels.levels[0].stop] if levels.levels else levels.words
        words = functional.dropout(functional.embedding(leaves, self.words), self.dropout, self.training)
        inner = self.bias.expand(len(levels.words) - len(leaves), -1)
        first = (words.to(self.precision) @ self.w.T.to(self.precision)).float() + self.bias
        return HierarchicalRecurrence.apply(levels, torch.cat([first, inner]), self.u.to(self.precision))


class Normalisation(nn.Module):
    """Batch normalisation with separate statistics for wholes (images, sentences) and parts (regions, phrases).

    The statistics are separate because features of crops and of whole images have different means. Both kinds share one
    gain and one shift.
    """

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dimensions))
        self.shift = nn.Parameter(torch.zeros(dimensions))
        self.wholes = nn.BatchNorm1d(dimensions, affine=False)
        self.parts = nn.BatchNorm1d(dimensions, affine=False)

    def forward(self, x: Tensor, wholes: int) -> Tensor:
        """Normalise the rows of x (n, K). The first `wholes` rows are images or sentences, and the others are regions
        or phrases. Return (n, K)."""
        sides = ((self.wholes, x[:wholes]), (self.parts, x[wholes:]))
        normalised = [norm(rows) for norm, rows in sides if len(rows)]
        return torch.cat(normalised) * self.gain + self.shift if normalised else x


class TwoBranches(GlobalNetwork):
    """The two-branch network with the score s = v . h of an image or region v and a sentence or phrase h (Niu et al.
    2017, section 3.2.2).

    Each branch is a linear map, followed by batch normalisation and scaling to unit length. In the code, W_m is
    `image_map` (K, D), for images and regions, and W_t is `text_map` (K, K), for the states of roots and noun phrases.
    The biases are in the normalisation. An addition of this project is `geometry`. With `geometry`, W_m is (K, D + 7),
    and also maps the seven values that `locate` computes for a region, minus the values of a whole image.
    """

    score = "cosine"
    mean: Tensor
    whole: Tensor

    def __init__(
        self, mean: Tensor, sentences: HierarchicalLSTM, dimensions: int, dropout: float, geometry: bool
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.sentences = sentences
        self.dropout = dropout
        whole = torch.from_numpy(WHOLE_IMAGE_GEOMETRY) if geometry else mean.new_zeros(0)
        self.register_buffer("whole", whole, persistent=False)
        inputs = len(mean) + len(self.whole)
        self.image_map = nn.Parameter(torch.empty(dimensions, inputs).uniform_(-1, 1) / inputs**0.5)
        self.text_map = nn.Parameter(torch.eye(dimensions))
        self.image_norm = Normalisation(dimensions)
        self.text_norm = Normalisation(dimensions)

    def embed_images(self, x: Tensor) -> Tensor:
        """Embed the stacked features (n, D) of n images as (n, K) of unit length."""
        return self._embed_views(self._centre_images(x), len(x))

    def embed_regions(self, x: Tensor) -> Tensor:
        """Embed the features (r, D) of r regions, or (r, D + 7) with `geometry`, as (r, K) of unit length."""
        return self._embed_views(self._centre_regions(x), 0)

    def _centre_images(self, x: Tensor) -> Tensor:
        return functional.pad(x - self.mean, (0, len(self.whole)))

    def _centre_regions(self, x: Tensor) -> Tensor:
        return x - torch.cat([self.mean, self.whole])

    def _embed_views(self, x: Tensor, images: int) -> Tensor:
        """Embed centred features x (n, D) as vectors (n, K) of unit length.

        The first `images` rows are images, the others regions. Images and regions are normalised with separate
        statistics.
        """
        x = functional.dropout(x, self.dropout, self.training)
        return functional.normalize(self.image_norm(x @ self.image_map.T, images), dim=1)

    def embed_nodes(self, levels: Levels, rows: Tensor, roots: int) -> Tensor:
        """Embed the nodes in the rows `rows` (p,) of `levels` as (p, K) of unit length. The first `roots` of these
        nodes are roots of trees, and the others are noun phrases."""
        states = functional.dropout(self.sentences(levels)[rows], self.dropout, self.training)
        return functional.normalize(self.text_norm(states @ self.text_map.T, roots), dim=1)

    def embed_sentences(self, levels: Levels) -> Tensor:
        """Embed n sentences by the roots of their trees as (n, K) of unit length."""
        return self.embed_nodes(levels, levels.roots, len(levels.roots))

    def forward(self, x: Tensor, levels: Levels, pairs: PhrasePairs) -> Scores:
        """Score n images, with the stacked features x (n, D), with n sentences, and the p regions of `pairs` with the p
        noun phrases of `pairs`."""
        n = len(x)
        h = self.embed_nodes(levels, torch.cat([levels.roots, pairs.rows]), n)
        v = self._embed_views(torch.cat([self._centre_images(x), self._centre_regions(pairs.regions)]), n)
        return Scores(v[:n] @ h[:n].T, v[n:] @ h[n:].T, pairs)


MAX_REGIONS = 1 << 16
"""Maximum number of regions that `HMLSTM.embed_regions` embeds at once."""


@dataclass(frozen=True)
class Correspondences(Ragged):
    """The region of each noun phrase of m sentences, sentence after sentence (Niu et al. 2017, section 3.3).

    `chosen` (p,) int64 is the number of the region in its image, and `confidence` (p,) float32 the cosine of phrase and
    region. The phrases of sentence i are offsets[i] to offsets[i + 1] - 1. Before the first matching, `chosen` is -1
    and `confidence` is 0 for all phrases.
    """

    chosen: Tensor
    confidence: Tensor
    offsets: np.ndarray


def noun_phrases(trees: Trees, noun_phrase: int) -> np.ndarray:
    """Return the positions of all noun phrases in the arrays of `trees`, tree after tree.

    Noun phrases are the inner nodes with the label `noun_phrase`, without the roots.
    """
    return np.flatnonzero((trees.labels == noun_phrase) & (trees.parents >= 0) & (trees.words < 0))


def match_regions(phrases: Tensor, images: np.ndarray, regions: Tensor, offsets: np.ndarray) -> tuple[Tensor, Tensor]:
    """Find the most similar region of the same image for each of p phrases.

    `phrases` (p, K) and `regions` (r, K) have unit length, and `images` (p,) are the images of the phrases. The regions
    of image i are offsets[i] to offsets[i + 1] - 1. The first region of an image is the whole image, and is chosen only
    if the image has no other region. Returns the number of the chosen region of each phrase, counted from 0 in its
    image, (p,), and the cosines of phrases and chosen regions, (p,).
    """
    lengths = np.diff(offsets)
    number = runs(np.zeros(len(lengths), np.int64), lengths)
    image = np.repeat(np.arange(len(lengths)), lengths)
    legal = (number > 0) | (lengths[image] == 1)
    allowed = upload((images[:, None] == image) & legal, phrases.device)
    confidence, best = (phrases @ regions.T).masked_fill(~allowed, -torch.inf).max(dim=1)
    return upload(number, best.device)[best], confidence


class HMLSTM(GlobalModel):
    """The HM-LSTM of Niu et al. 2017. A sentence is embedded as the root of its phrase tree.

    Training also moves each noun phrase of the tree towards the region of the image that is most similar to the phrase.
    """

    sentence_view = "phrase-trees"

    @classmethod
    def make_network(
        cls, mean: Tensor, words: Tensor, dimensions: int, dropout: float, learned: Settings, score: Score
    ) -> TwoBranches:
        """Create the untrained network. `learned` has the id `noun_phrase` of the label of noun phrases, and whether
        regions have `geometry`.

        `mean` (D,) is subtracted from images, and `words` (V + 1, d) are the word vectors. `score` is not used, because
        the score is always the cosine.
        """
        sentences = HierarchicalLSTM(words, dimensions, dropout, read_setting(learned, "noun_phrase", int))
        return TwoBranches(mean, sentences, dimensions, dropout, bool(learned.get("geometry", False)))

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"noun_phrase": task.noun_phrase, "geometry": required(task.region_view).geometry}

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """Create the model, and return its training by Niu et al. 2017, Figure 3, which has not begun.

        The first `simplified_epochs` epochs use only the loss of sentences. All later epochs use the losses of
        sentences and phrases. The correspondences of phrases and regions are computed before the first of the later
        epochs, and again after every `correspondence_epochs` epochs.
        """
        model = cls.untrained(task).to(task.device)
        train = task.train
        settings = task.own_settings(DenseTrainSettings)
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
        """Return the arguments of the network for the training pairs `rows`: images, arranged trees, and noun phrases
        with the regions that `matches` assigns to them, or with random regions before the first matching."""
        trees = task.train.sentences.take(rows)
        owners = task.train.owners[rows]
        levels = self.arrange(trees)
        images, image_of = np.unique(owners, return_inverse=True)
        block = required(task.train.regions).packed(images)
        positions = matches.positions(rows)
        counts = matches.lengths[rows]
        image = np.repeat(image_of, counts)
        chosen = block.offsets[image] + _fill_missing(matches.chosen[positions].numpy(), np.diff(block.offsets)[image])
        pairs = PhrasePairs(
            phrase_rows(levels, trees, self.network.sentences),
            torch.from_numpy(required(task.region_view).stack(block, chosen, task.view)),
            matches.confidence[positions].clamp(min=0),
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
        """Embed the r regions of a block, and return (r, c) float32.

        `view` describes the features in the block. By default the block has the features of the model's encoders, in
        the model's order.
        """
        view = view or RegionView(self.view, bool(self.learned.get("geometry", False)))
        x = view.stack(block, through=self.view)
        embed = self.network.embed_regions
        return self.in_blocks(lambda rows: embed(upload(x[rows], self.device)), len(x), "region", MAX_REGIONS)

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed the p noun phrases in the trees `phrases`, which are trees of whole sentences. Return (p, c) float32,
        tree after tree, and within a tree in the order of its nodes."""
        assert isinstance(phrases, Trees)

        def embed(rows: slice) -> Tensor:
            trees = phrases.take(np.arange(rows.start, rows.stop))
            levels = self.arrange(trees)
            arranged = move_tensors((levels, phrase_rows(levels, trees, self.network.sentences)), self.device)
            return self.network.embed_nodes(*arranged, roots=0)

        return self.in_blocks(embed, len(phrases), "sentence")

    def no_correspondences(self, sentences: Trees) -> Correspondences:
        """Return the initial correspondences. Each phrase has the region -1 and the confidence 0."""
        nodes = noun_phrases(sentences, self.network.sentences.noun_phrase)
        offsets = np.searchsorted(nodes, sentences.offsets)
        return Correspondences(torch.full((len(nodes),), -1), torch.zeros(len(nodes)), offsets)

    def correspond(
        self, sentences: Trees, owners: np.ndarray, regions: RegionSource, view: RegionView
    ) -> Correspondences:
        """Find the most similar region for each noun phrase of m `sentences`. `owners` (m,) has the row in `regions` of
        the image of each sentence.

        `view` describes the features in `regions`.
        """
        matches = self.no_correspondences(sentences)
        with torch.inference_mode():
            for start in range(0, len(sentences), BLOCK_ROWS):
                rows = np.arange(start, min(start + BLOCK_ROWS, len(sentences)))
                images, image_of = np.unique(owners[rows], return_inverse=True)
                block = regions.packed(images)
                vectors = upload(self.embed_regions(block, view), self.device)
                phrases = upload(self.embed_phrases(sentences.take(rows)), self.device)
                block_phrases = slice(matches.offsets[rows[0]], matches.offsets[rows[-1] + 1])
                matches.chosen[block_phrases], matches.confidence[block_phrases] = match_regions(
                    phrases, np.repeat(image_of, matches.lengths[rows]), vectors, block.offsets
                )
        return matches


def phrase_rows(levels: Levels, trees: Trees, encoder: HierarchicalLSTM) -> Tensor:
    """Return the rows in `levels` of the p noun phrases of `trees`, (p,) int64, tree after tree and in the order of the
    nodes. `levels` is the result of `arrange` for the same trees."""
    row = torch.empty_like(levels.nodes)
    row[levels.nodes] = torch.arange(len(row))
    empty = np.cumsum(trees.lengths == 0)  # `levels` has a node for each empty tree, but `trees` does not.
    phrases = noun_phrases(trees, encoder.noun_phrase)
    return row[torch.from_numpy(phrases + np.repeat(empty, trees.lengths)[phrases])]


def _fill_missing(chosen: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Replace the regions -1 in `chosen` (p,) by random regions of the same image, and return (p,).

    `counts` (p,) are the numbers of regions of the phrases' images. Region 0, the whole image, is drawn only if the
    image has no other region. In this way, the batch normalisation of regions has the statistics of regions from the
    first epoch on.
    """
    drawn = (torch.rand(len(chosen)).numpy() * (counts - 1)).astype(np.int64) + 1
    return np.where(chosen < 0, np.minimum(drawn, counts - 1), chosen)
