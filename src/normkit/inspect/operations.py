"""What torch's functions do, for whoever follows a tensor through a model: one table."""

from __future__ import annotations

from types import FunctionType
from typing import Any

__all__ = ["FUNCTIONAL_NORMS", "MOVES", "PASSES", "WEIGHTED", "kind_of", "name_of", "norm_arguments"]

_NAMES = {
    # the same numbers, in another shape or order, or some of them
    "view": """view reshape view_as reshape_as transpose transpose_ swapaxes swapdims permute movedim moveaxis
        unsqueeze unsqueeze_ squeeze squeeze_ flatten unflatten expand expand_as broadcast_to contiguous t T
        mT H mH chunk split tensor_split unbind __getitem__ narrow select index_select slice roll flip repeat
        repeat_interleave tile as_strided pixel_shuffle pixel_unshuffle gather take take_along_dim unfold
        masked_select diagonal data real detach detach_ alias atleast_2d atleast_3d channel_shuffle
        split_with_sizes unsafe_chunk unsafe_split""",
    # several tensors side by side, or one inside of another
    "join": """cat concat concatenate stack vstack hstack __setitem__ index_put index_put_ scatter scatter_
        index_copy_ copy_ masked_scatter masked_scatter_ pad constant_pad_nd index_add index_add_ scatter_add
        scatter_add_ where""",
    # the same numbers in another dtype, or a copy of them
    "cast": """to type type_as float half bfloat16 double clone cpu cuda empty_like zeros_like ones_like
        requires_grad_""",
    "dropout": """dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_dropout
        feature_alpha_dropout native_dropout bernoulli_""",
    "add": "add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ rsub",
    "mul": """mul mul_ __mul__ __rmul__ __imul__ multiply div div_ __truediv__ __itruediv__ true_divide divide
        addcmul addcmul_ neg""",
    "linear": """linear matmul __matmul__ __rmatmul__ mm bmm addmm addmm_ baddbmm addbmm einsum bilinear addmv
        mv _grouped_mm grouped_mm _scaled_mm tensordot linear_dynamic chain_matmul lstm gru rnn_tanh rnn_relu
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell""",
    "conv": """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution conv_tbc
        deform_conv2d causal_conv1d_fn""",
    "embedding": "embedding embedding_bag",
    "attention": """scaled_dot_product_attention flex_attention flash_attn_func flash_attn_varlen_func
        multi_head_attention_forward""",
    "softmax": "softmax log_softmax softmin",
    "norm": "layer_norm rms_norm group_norm batch_norm instance_norm normalize",
    "activation": """relu relu_ gelu silu silu_ sigmoid sigmoid_ tanh tanh_ softplus elu elu_ selu celu
        leaky_relu leaky_relu_ relu6 hardswish hardswish_ hardsigmoid hardtanh hardtanh_ mish glu prelu
        threshold logsigmoid square erf""",
    "pool": """mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
        adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d amax max adaptive_max_pool2d interpolate""",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}

MOVES = frozenset({"view", "cast", "dropout"})  # through which numbers stay what they are
PASSES = MOVES | {"mul", "add", "join"}  # of one tensor that follows from the batch: a scale, a position
WEIGHTED = frozenset({"linear", "conv", "embedding", "opaque"})  # where they meet a matrix

# The names of their arguments, as torch.nn.functional has them.
FUNCTIONAL_NORMS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "instance_norm": (
        *("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps"),
    ),
    "normalize": ("input", "p", "dim", "eps"),
}


# As torch itself and torch.ops.aten have them.
BUILT_IN_NORMS = {
    "batch_norm": (
        *("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
        "cudnn_enabled",
    ),
    "instance_norm": (
        *("input", "weight", "bias", "running_mean", "running_var", "use_input_stats", "momentum", "eps"),
        "cudnn_enabled",
    ),
}


def norm_arguments(func: Any) -> tuple[str, ...]:
    """The names of a functional norm's arguments."""
    name = name_of(func)
    of_python = isinstance(func, FunctionType)
    return FUNCTIONAL_NORMS[name] if of_python else BUILT_IN_NORMS.get(name, FUNCTIONAL_NORMS[name])


def name_of(func: Any) -> str:
    """``add`` of torch.add, Tensor.add and torch.ops.aten.add.Tensor; of a property, the property's name."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "__get__")
    if name.endswith((".default", ".Tensor", ".Scalar")):
        return name.split(".")[0]
    return name


def kind_of(name: str) -> str:
    """One of the kinds of the table, or "other"."""
    return _KINDS.get(name, "other")
