"""Workflows: jobs as DAGs of tasks over topics, who works on them, and how many consumers each task gets.

`Workflow` says what there is, `Jobs` asks for jobs and tells what became of them.
"""

from clarion.workflow.definition import JobType, Task, Workflow, load_workflow

__all__ = ["JobType", "Task", "Workflow", "load_workflow"]
