"""All measurements on an NVIDIA GPU in one run: python -m benchmarks.gpu."""
