"""Calibration: real links measured or read from a log, a link model fitted to them, a cluster file written of it."""
