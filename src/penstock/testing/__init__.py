"""The public test kit: what Penstock tests itself with, for users to test their own code.

It has harnesses for operators and sources, whole pipelines in one process, stores that fail on
purpose, sweeps over every call that can fail, and checks of what must hold afterwards. Nothing
in Penstock outside of tests imports from here. Names are imported at their first use, because
`testing.strategies` needs Hypothesis, and every run of pytest imports `testing.plugin`.
"""

from penstock.core import spellings

__getattr__, __dir__, __all__ = spellings.attach(__name__, __file__)
