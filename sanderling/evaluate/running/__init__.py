"""An evaluation at work: samples prepared, inferred, spread over processes, and kept."""
