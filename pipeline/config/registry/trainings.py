"""What a linear model may learn from; see pipeline.models.linear.training."""

STACKED = ("auxiliary_dimensions", "auxiliary_power", "auxiliary_eigenvalues")
"""The keys of `transfer` that make the projection of the auxiliary pairs, a normalized CCA."""
TRAININGS: dict[str, tuple[str, ...]] = {
    "target": (),
    "auxiliary": (),
    "joint": ("beta",),
    "text-feature": ("neighbours", "neighbour_share"),
    "stacked": STACKED,
    "sae-linear": (*STACKED, "weight", "second_beta"),
    "sae": (*STACKED, "weight", "second_beta", "rule", "bandwidth", "features", "sample"),
}
"""Training -> the keys of `transfer` that matter to it."""
STACKING = tuple(name for name, keys in TRAININGS.items() if keys[: len(STACKED)] == STACKED)
"""The trainings that stack a normalized CCA of the auxiliary pairs."""
UNSTACKED = tuple(name for name in TRAININGS if name not in STACKING)
