"""The float model in its plain form, and the ranges of its values on samples."""
