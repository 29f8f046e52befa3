"""The public test kit: what Penstock tests itself with, for users to test their own code.

Harnesses for operators and sources, whole pipelines in one process, stores that fail on
purpose, sweeps over every point where they can, and checks of what must hold afterwards.
Nothing in Penstock outside of tests imports from here. `testing.strategies` needs
Hypothesis and `testing.plugin` is for pytest, which imports it in every run: so names are
imported at their first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
