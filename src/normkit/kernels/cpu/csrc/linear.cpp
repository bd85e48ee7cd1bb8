// A linear layer on a few rows: check, allocate, share the outputs out among threads.
#include "tensor.h"

namespace normkit {

// (x, weight, bias?) -> x weightᵀ + bias, of one dtype, in one block of memory each.
void linear(StableIValue *stack, uint64_t, uint64_t) {
    Arguments a(stack);
    Tensor x = a.tensor(), weight = a.tensor(), bias = a.optional_tensor();
    STD_TORCH_CHECK(x.ndim() >= 1 && weight.ndim() == 2, "x has at least one axis, a weight has two");
    const int64_t ndim = x.ndim(), in = weight.sizes()[1], out = weight.sizes()[0];
    const Type type = x.type();
    STD_TORCH_CHECK(weight.type() == type && (!bias || bias.type() == type), "dtypes differ");
    STD_TORCH_CHECK(x.sizes()[ndim - 1] == in, "x has another number of features than the weight");
    STD_TORCH_CHECK(!bias || (bias.ndim() == 1 && bias.numel() == out), "a bias has one number an output");
    STD_TORCH_CHECK(x.dense() && weight.dense() && (!bias || bias.dense()), "one block of memory each");
    STD_TORCH_CHECK(ndim <= 64, "a tensor has at most 64 axes");
    int64_t sizes[64];
    for (int64_t k = 0; k < ndim; ++k) sizes[k] = k + 1 < ndim ? x.sizes()[k] : out;
    Tensor y = Tensor::empty(sizes, ndim, type);
    const Linear job = {in ? x.numel() / in : y.numel() / (out ? out : 1), in, out, x.data(), weight.data(),
                        bias ? bias.data() : nullptr, y.data()};
    parallel(out, in, [&](int64_t begin, int64_t end) { kernels().linear[type](job, begin, end); });
    stack[0] = returned(std::move(y));
}

} // namespace normkit
