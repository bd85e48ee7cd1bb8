"""How fast is it? ``make bench`` compares ours with torch, torch.compile, ONNX Runtime and copy_."""
