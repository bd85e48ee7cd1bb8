"""How fast is it here? What ``normkit bench`` and ``make bench`` measure with.

A cell is one norm, one way to call it, one input; its candidates are ours and the peers, on the same tensors.
They take turns in one process, and the machine, the driver and all versions go into the results.
"""
