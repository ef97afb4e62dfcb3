"""Training on the .tflite itself: a graph as a PyTorch module. PyTorch is the extra `[train]`."""

from importlib.util import find_spec

from ..errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError("torch", "train", "training on a .tflite")
