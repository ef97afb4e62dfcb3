"""The local page of `sanderling serve`: records of all verbs in a folder, as tables and pictures.

`static/uPlot.*` is uPlot 1.6.32 as npm has it (dist/uPlot.iife.min.js, dist/uPlot.min.css), under
the licence in `static/uPlot.LICENSE`. All else in `static/` is ours and is served as it lies there.
"""
