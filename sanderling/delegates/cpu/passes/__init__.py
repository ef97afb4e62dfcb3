"""From graph to graph, before a part is placed and written. `pipeline.py` has their order."""
