"""Choosing: the setting for a machine, the model for a task, the next step."""
