"""Linear models whose `solver` needs nothing but moments."""

from typing import TYPE_CHECKING

from pipeline.models.linear.projection import LinearModel

if TYPE_CHECKING:
    from pipeline.models.linear.training import FitTask
    from pipeline.models.linear.tuning import Tuned


class MomentsModel(LinearModel):
    """Its fit is that of pipeline.models.linear.training, imported for it alone: queries do without."""

    @classmethod
    def fit(cls, task: "FitTask") -> "Tuned":
        """The best on dev, by `task.training`."""
        from pipeline.models.linear.training import fit_on_moments

        return fit_on_moments(cls, task)
