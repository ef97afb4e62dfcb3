"""The delegate `coreml`: parts as ML programs, saved anywhere and executed on macOS."""
