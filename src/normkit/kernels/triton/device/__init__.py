"""What runs on a GPU: Triton's language, and nothing of torch. The host's side is in the folder above."""
