"""Two answers compared: as a whole, tensor by tensor, and down to the ops to blame."""
