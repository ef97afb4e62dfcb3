"""What numbers become, which op gets what, and what integer kernels ask for."""
