"""The registered global models on parsed sentences: ctrnn, dtrnn, sdtrnn (Socher et al. 2014)."""

from typing import Any

from torch import Tensor

from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.tree_levels import Levels
from pipeline.models.neural.tree_rnn import ConstituencyRNN, PositionRNN, RelationRNN
from pipeline.models.neural.word_models import GlobalModel
from pipeline.text.trees import Trees


class TreeModel(GlobalModel):
    """A global model whose sentences are trees."""

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return cls.sentence_encoder.learn(task.train.sentences)

    def anchors(self) -> dict[str, Tensor]:
        """The block identities, with which a sentence is about the mean of its words."""
        network = self.network.sentences
        return {f"sentences.{name}": p.detach().clone() for name, p in network.named_parameters() if name != "words"}

    def arrange(self, sentences: Trees) -> Levels:
        return self.network.sentences.arrange(sentences)


class CTRNN(TreeModel):
    """Recursive networks over binary phrase trees; like `bow`, its space has the dimension of the word vectors."""

    sentence_view = "phrase-trees"
    sentence_encoder = ConstituencyRNN

    @classmethod
    def dimensions(cls, wanted: int, word_dim: int) -> int:
        return word_dim


class DTRNN(TreeModel):
    """Recursive networks over dependency trees whose matrices depend on a child's place."""

    sentence_view = "dependency-trees"
    sentence_encoder = PositionRNN


class SDTRNN(TreeModel):
    """Recursive networks over dependency trees whose matrices depend on a child's relation."""

    sentence_view = "dependency-trees"
    sentence_encoder = RelationRNN

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return RelationRNN.learn(task.train.sentences, task.settings.rare)
