"""Runs compiled pieces: runs of K steps that PyTorch's compiler has made one graph of."""
