"""mpi4py's face: its names for communicators, messages, collectives and requests, over emu's own communicator.

A program written for mpi4py runs on it unchanged: `emu run` hands it the module that `module.make` builds.
"""
