"""stackmgr: the service through which wealth managers publish stacks over HTTP."""

__version__ = "1.0.0"
