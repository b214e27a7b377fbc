"""Layers, losses, optimizers, data and models: explicit forward and backward, and a cost for each kernel."""
