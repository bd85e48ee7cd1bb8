"""Is it right here? What ``normkit verify`` checks on a device, against float64 on the CPU.

norms      how each norm is called, and what computes a call
cases      the inputs: sizes, means, dtypes, layouts, and numbers that are hard
truth      the same call in float64, and how far off a result is
checking   accuracy, gradients, repeated bits, batches, memory: each a function of a case
running    all of them, one after the other
table      in print
"""
