"""Pictures: from files to arrays, and to what a model is fed with."""
