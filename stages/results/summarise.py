"""`summarise`: all evaluations of a run in one list, and as a table to read."""

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def summarise(run: Run, job: Job) -> None:
    """Collect all evaluations of the run in one list and one table."""
    from pipeline.evaluate.summary import markdown
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import write_summary

    values = [read_record(run.layout.evaluation(*names).path) for names in run.config.evaluations()]
    values = [value for value in values if value["n_images"]]
    write_summary(job.path, values, markdown(values), job.provenance)


STAGE = Stage(
    summarise,
    version=2,
    wanted=lambda config: [()],
    reads=lambda config, layout: named(*(layout.evaluation(*names) for names in config.evaluations())),
    writes=lambda layout: (layout.summary, layout.summary_table),
)
