"""A run: its configuration, its layout, its artefacts; and how a stage is mapped over its shards."""

from pipeline.run.run import Run
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, ShardJob, Stage, outside_files, stage

__all__ = ["Input", "Inputs", "Job", "Names", "Outside", "Run", "ShardJob", "Stage", "outside_files", "stage"]
