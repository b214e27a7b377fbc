"""Timelines and clusters as text, plots, JSON and Perfetto traces. Nothing here prints."""
