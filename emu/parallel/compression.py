"""Communication hooks: ways to sum a bucket's gradients over the ranks in fewer bytes. (Empty so far.)"""
HOOKS: dict = {}
