"""What all sections of the configuration share."""

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Described = Literal["train", "dev", "test"]
"""A split whose images have sentences."""
Split = Literal[Described, "weak", "gallery"]
"""Beside these `weak`, whose images have weak text to learn from, and `gallery`, whose images are only to be found."""
DESCRIBED, SPLITS = get_args(Described), get_args(Split)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
