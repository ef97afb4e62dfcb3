"""The tasks that come with the package, and what a model's outputs mean in each."""
