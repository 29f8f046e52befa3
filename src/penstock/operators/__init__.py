"""What processes rows: the contracts of operators and sources, and the loop that drives them.

Authors of operators, sources and sinks import from here; `__init__.pyi` lists the names.
Everything here runs inside one subtask and sees one epoch at a time. Nothing here depends on
where it runs, how rows travel between subtasks, or how epochs are published.
"""

from penstock.core import spellings

__getattr__, __dir__, __all__ = spellings.attach(__name__, __file__)
