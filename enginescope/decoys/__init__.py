"""Decoys: what is healthy or merely odd. One module each; ``enginescope.drills.decoys`` runs them, and none may page.

A module's docstring says what happens. ``COULD_PAGE`` names the failures that it looks like. ``SPAN`` is the window and
``for``, as shipped, of the slowest rule that it could fool; the decoy lasts twice as long at the stack's time-scale.
``NEEDS`` says what not every stack has. ``happening`` makes it so for the length of a block, and gives a function that
says in words which metric proves it, or None while none does.
"""
