"""Other engines as delegates: each is handed a part of the graph as a model of its own."""
