"""Evaluations and differences on a phone, judged as our own are."""
