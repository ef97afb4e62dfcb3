"""What a quantisation cost, and the choices made by that."""
