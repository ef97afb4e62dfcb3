"""Passes from graph to graph for this delegate."""
