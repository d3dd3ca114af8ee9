"""Many drills: which of them fit a stack, in what order they run, what else may page meanwhile, and the report.

One drill by itself, and what its ``drill.py`` may use, is in ``enginescope.drill``.
"""
