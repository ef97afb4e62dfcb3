"""Rewrites that make a model acceptable to an accelerator, with answers compared before and after.

The modules, each of which imports only those before it:

    steps -> views, ranks, pieces, arithmetic, products, control -> table -> whole_model -> driver
    -> answers
"""
