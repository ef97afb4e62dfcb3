"""Running models: the delegate contract, plans, sessions, the drop-in interpreter."""
