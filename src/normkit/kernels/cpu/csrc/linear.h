// y = x weightᵀ + bias for a few rows of x, as when a model writes one token after the other: the weight is read once,
// as fast as memory gives it. Included inside namespace normkit::NK_ISA.

// Outputs [begin, end), four at a time, so that a register of x serves four rows of the weight.
template <class T> void linear(const Linear &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t n = job.in, W = LANES<C>, whole = n / W * W;
    const T *bias = static_cast<const T *>(job.bias);
    auto rows = [&](auto how_many, int64_t j) NK_LAMBDA {
        constexpr int N = how_many.value;
        const T *weight[N];
        for (int k = 0; k < N; ++k) weight[k] = static_cast<const T *>(job.weight) + (j + k) * n;
        for (int64_t row = 0; row < job.rows; ++row) {
            const T *x = static_cast<const T *>(job.x) + row * n;
            V acc[N][2];
#pragma GCC unroll 4
            for (int k = 0; k < N; ++k) acc[k][0] = acc[k][1] = V{};
            int64_t i = 0;
            for (; i + 2 * W <= whole; i += 2 * W) {
                const V a = load(x + i), b = load(x + i + W);
#pragma GCC unroll 4
                for (int k = 0; k < N; ++k) {
                    __builtin_prefetch(weight[k] + i + 256);
                    acc[k][0] = madd(load(weight[k] + i), a, acc[k][0]);
                    acc[k][1] = madd(load(weight[k] + i + W), b, acc[k][1]);
                }
            }
            for (; i < whole; i += W)
                for (int k = 0; k < N; ++k) acc[k][0] = madd(load(weight[k] + i), load(x + i), acc[k][0]);
            for (int k = 0; k < N; ++k) {
                double sum = total(acc[k][0] + acc[k][1]);
                for (int64_t rest = whole; rest < n; ++rest) sum += double(widen(weight[k][rest])) * widen(x[rest]);
                if (bias) sum += widen(bias[j + k]);
                static_cast<T *>(job.y)[row * job.out + j + k] = narrow<T>(sum);
            }
        }
    };
    int64_t j = begin;
    for (; j + 4 <= end; j += 4) rows(Four(), j);
    for (; j < end; ++j) rows(One(), j);
}
