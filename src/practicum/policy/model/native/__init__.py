"""Compiled kernels: built on demand with the system's compiler, and never needed.

`build.load()` gives the library, or None where there is no compiler or it is switched off; what
uses it has a plain PyTorch twin beside it, and a test holds the two together.
"""
