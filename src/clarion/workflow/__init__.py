"""Workflows: jobs as DAGs of tasks over topics, who works on them, and how many consumers each task gets.

`Workflow` says what there is, `Jobs` asks for jobs and tells what became of them.
"""

from clarion.workflow.definition import JobType, Task, Workflow, load_workflow
from clarion.workflow.jobs import JobCancelled, JobFailed, Jobs, JobStatus, NoJob, NoJobType
from clarion.workflow.stored_data import Reference
from clarion.workflow.worker import Context, Worker

__all__ = [
    "Context",
    "JobCancelled",
    "JobFailed",
    "JobStatus",
    "JobType",
    "Jobs",
    "NoJob",
    "NoJobType",
    "Reference",
    "Task",
    "Worker",
    "Workflow",
    "load_workflow",
]
