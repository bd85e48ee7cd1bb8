"""The CPU: the operators in C++ through LibTorch's stable ABI, for float32, float64, bfloat16 and float16."""
