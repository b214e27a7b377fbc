"""Ways to train one model on several GPUs, written once on Gpu and Comm."""
