"""Facts about jobs, computed once: values for Python, for the command line and for a console.

A job is found by the URL of its checkpoints and its name alone. Looking at a job disturbs nobody.
"""
