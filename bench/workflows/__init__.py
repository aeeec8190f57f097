"""Chains of tasks that survive a killed worker: Clarion beside Celery and DBOS, the same work on one machine."""
