// LayerNorm and RMSNorm of rows of neighbouring numbers. Included inside namespace normkit::NK_ISA.

template <class X, class R> struct Wider { using T = X; };
template <> struct Wider<bf16, float> { using T = float; };
template <> struct Wider<f16, float> { using T = float; };

// Squares outside of these bounds have lost digits, or all of them: such a row is done with care.
template <class C> NK_INLINE bool ordinary(double var) {
    return sizeof(C) == 4 ? var > 1e-30 && var < 1e37 : var > 1e-290 && var < 1e307;
}

// Is inf or NaN among these numbers? Then there is nothing to save, and the usual way gives NaN where it has to.
template <class S> __attribute__((noinline)) bool any_infinite(const S *s, int64_t n) {
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    constexpr int64_t FEW = 8 * LANES<C>; // at a time: mostly the first of many is found
    for (int64_t from = 0; from < n; from += FEW) {
        double zero[1];
        reduce<C>(least(FEW, n - from), zero, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V v = at.keep(at.load(s + from + j));
            acc[0] += v - v;
        });
        if (zero[0] != 0) return true; // NaN is
    }
    return false;
}

// Mean and variance of n neighbours.
//
//   shift = mean of the first few x   any number close to the mean will do; this one is x if all are equal
//   d     = x - shift                 exact, or nearly
//   rest  = mean(d)                   how far shift is off
//   var   = mean(d²) - rest²          cancels one bit at most, since rest is within the spread
//
// Numbers whose beginning is far from their mean take a second look, from shift + rest. Not centred: shift and
// rest are 0, and var is the mean square.
template <class C> struct Look {
    C shift;
    double rest, var;
};
template <bool CENTER, class S> NK_INLINE auto look(const S *s, int64_t n) {
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    constexpr bool PAIRS = std::is_same<S, bf16>::value;
    const double per = 1.0 / n;
    Look<C> m = {0, 0, 0};
    if (!CENTER) {
        double square[1];
        reduce<C, PAIRS>(n, square, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V v = at.keep(at.load(s + j));
            acc[0] = madd(v, v, acc[0]);
        });
        m.var = square[0] * per;
        return m;
    }
    double sums[2];
    m.shift = C(n < LANES<C> ? total(load_part(s, n)) * per : total(load(s)) / LANES<C>);
    for (int times = 0; times < 2; ++times) {
        const C shift = m.shift;
        reduce<C, PAIRS>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V d = at.keep(at.load(s + j) - shift);
            acc[0] += d;
            acc[1] = madd(d, d, acc[1]);
        });
        m.rest = sums[0] * per;
        m.var = sums[1] * per - m.rest * m.rest;
        if (m.rest * m.rest <= m.var || m.var != m.var) break;
        if (times == 0) m.shift = C(shift + m.rest);
    }
    return m;
}

// A parameter of bfloat16 rows in the order of pairs: every two registers, the even places first. False: it holds
// inf or NaN.
inline bool pair_up(const float *from, float *to, int64_t n) {
    constexpr int64_t W = LANES<float>;
    vf zero = {};
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) {
        for (int64_t k = 0; k < W; ++k) {
            to[j + k] = from[j + 2 * k];
            to[j + W + k] = from[j + 2 * k + 1];
        }
        const vf a = load(from + j), b = load(from + j + W);
        zero += (a - a) + (b - b);
    }
    return total(zero) == 0;
}
constexpr int64_t WORTH_PAIRS = 8; // rows

// y = (x - shift - rest) * rstd * weight + bias
template <class X, class R, bool CENTER>
void rows_forward(const RowsForward &job, int64_t begin, int64_t end) {
    using S = typename Wider<X, R>::T;
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    const int64_t n = job.dim;
    const C *weight = static_cast<const C *>(job.weight), *bias = static_cast<const C *>(job.bias);
    const bool usual = weight && (!CENTER || bias) && job.rounded == F64;
    constexpr bool PAIRS = std::is_same<S, bf16>::value;
    constexpr int64_t W = LANES<C>;
    C *memory = PAIRS || job.stream_total ? static_cast<C *>(scratch(3 * n * sizeof(C))) : nullptr;
    C *pair_weight = nullptr, *pair_bias = nullptr;
    if constexpr (PAIRS)
        if (usual && end - begin >= WORTH_PAIRS && n >= 2 * W) {
            pair_weight = memory;
            pair_bias = memory + n;
            if (!pair_up(weight, pair_weight, n) || (CENTER && !pair_up(bias, pair_bias, n))) pair_weight = nullptr;
        }
    for (int64_t row = begin; row < end; ++row) {
        const X *x = static_cast<const X *>(job.x) + job.x_at.offset(row);
        X *y = static_cast<X *>(job.y) + row * n;
        const S *s = reinterpret_cast<const S *>(x);
        if (job.residual) {
            const R *residual = static_cast<const R *>(job.residual) + job.residual_at.offset(row);
            S *sum = static_cast<S *>(job.total) + row * n;
            if (job.stream_total) { // and keep a copy, which is read again at once
                S *copy = reinterpret_cast<S *>(memory + 2 * n);
                map<C>(Streaming(), n, [&](auto at, int64_t j) NK_LAMBDA {
                    V v = at.load(x + j) + at.load(residual + j);
                    at.store(copy + j, v);
                    at.output(sum + j, v);
                });
                s = copy;
            } else {
                map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                    at.store(sum + j, at.load(x + j) + at.load(residual + j));
                }, job.total_is_term);
                s = sum;
            }
        }
        const Look<C> m = look<CENTER>(s, n);
        const double var = m.var;
        const C shift = m.shift;
        const bool is_ordinary = ordinary<C>(var + job.eps);
        if (!is_ordinary && !any_infinite(s, n)) {
            careful_row(job, row);
            continue;
        }
        const C rstd = C(1 / __builtin_sqrt(var + job.eps)), off = C(m.rest);
        if (job.mean) static_cast<C *>(job.mean)[row] = shift;
        if (job.rstd) static_cast<C *>(job.rstd)[row] = rstd;
        if (rstd != rstd) { // of NaN, or of inf less a mean
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(y + j, all(rstd)); });
            continue;
        }
        const X *next = row + 1 < end ? static_cast<const X *>(job.x) + job.x_at.offset(row + 1) : x;
        auto x_hat = [&](auto at, int64_t j) NK_LAMBDA -> V {
            __builtin_prefetch(next + j); // reading the next row overlaps with writing this one
            return ((at.load(s + j) - shift) - off) * rstd;
        };
        auto scaled = [&](V v, const C *w, const C *b) NK_LAMBDA -> V {
            return CENTER ? madd(v, load(w), load(b)) : v * load(w);
        };
        int64_t done = 0;
        if constexpr (PAIRS)
            if (pair_weight && is_ordinary) {
                auto pairs = [&](auto put) NK_LAMBDA {
                    for (; done + 2 * W <= n; done += 2 * W)
                        put(y + done, scaled(x_hat(Even(), done), pair_weight + done, pair_bias + done),
                            scaled(x_hat(Odd(), done), pair_weight + done + W, pair_bias + done + W));
                };
                if (job.stream) pairs([](X *p, V even, V odd) NK_LAMBDA { stream(p, even, odd); });
                else pairs([](X *p, V even, V odd) NK_LAMBDA { store(p, even, odd); });
            }
        auto common = [&](auto at) NK_LAMBDA {
            map<C>(at, n, [&](auto at, int64_t j) NK_LAMBDA {
                V v = x_hat(at, j), w = at.load(weight + j);
                at.output(y + j, CENTER ? madd(v, w, at.load(bias + j)) : v * w);
            }, job.y_is_x, done);
        };
        if (!usual)
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                V v = x_hat(at, j);
                if (!CENTER) v = rounded_to(job.rounded, v);
                if (weight) v = v * at.load(weight + j);
                if (CENTER && bias) v = v + at.load(bias + j);
                at.store(y + j, v);
            }, job.y_is_x);
        else if (job.stream) common(Streaming());
        else common(Whole());
    }
    if (job.stream || job.stream_total) streamed();
}

// body(at, j) for n numbers in double, of arrays in any dtype: at(p) reads, at(p, v) writes.
struct Doubles {
    template <class C> NK_INLINE vd operator()(const C *p) const {
        typedef C part __attribute__((vector_size(LANES<double> * sizeof(C))));
        return __builtin_convertvector(raw<part>(p), vd);
    }
    NK_INLINE void operator()(double *p, vd v) const { store(p, v); }
};
struct Double {
    template <class C> NK_INLINE double operator()(const C *p) const { return *p; }
    NK_INLINE void operator()(double *p, double v) const { *p = v; }
};
template <class Body> NK_INLINE void in_double(int64_t n, Body body) {
    int64_t j = 0;
    for (; j + LANES<double> <= n; j += LANES<double>) body(Doubles(), j);
    for (; j < n; ++j) body(Double(), j);
}

// Sums of a block, to those of its chunk.
template <class C> void add_up(double *to, const C *from, int64_t n, bool fresh) {
    if (fresh) in_double(n, [&](auto at, int64_t j) NK_LAMBDA { at(to + j, at(from + j)); });
    else in_double(n, [&](auto at, int64_t j) NK_LAMBDA { at(to + j, at(to + j) + at(from + j)); });
}

// Sums of all chunks: columns [begin, end) of `count` rows.
template <class T> void sum_chunks(const double *parts, int64_t count, int64_t n, int64_t begin, int64_t end, void *out) {
    constexpr int64_t W = LANES<double>;
    T *to = static_cast<T *>(out);
    int64_t j = begin;
    if constexpr (sizeof(T) >= 4) {
        typedef T part __attribute__((vector_size(W * sizeof(T))));
        for (; j + W <= end; j += W) {
            vd s = load(parts + j);
            for (int64_t c = 1; c < count; ++c) s += load(parts + c * n + j);
            const part p = __builtin_convertvector(s, part);
            __builtin_memcpy(to + j, &p, sizeof p);
        }
    }
    for (; j < end; ++j) {
        double s = parts[j];
        for (int64_t c = 1; c < count; ++c) s += parts[c * n + j];
        to[j] = narrow<T>(s);
    }
}

// A parameter in the compute dtype of half-width inputs.
template <class T> void widened(const void *from, float *to, int64_t n) {
    map<float>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(to + j, at.load(static_cast<const T *>(from) + j)); });
}

// With g = dy * weight,
//
//   dx      = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) + dtotal       RMSNorm: without mean(g)
//   dweight = sum over rows of dy * x_hat,   dbias = sum over rows of dy
//
// Rows are cut into chunks by shape alone. Within a chunk, float32 adds up at most BLOCK_ROWS rows, two at a time;
// blocks are added in double.
template <class G, class S, bool CENTER>
void rows_backward(const RowsBackward &job, int64_t begin, int64_t end) {
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    const int64_t n = job.dim;
    const double per = 1.0 / n;
    const C *weight = static_cast<const C *>(job.weight);
    const bool sums = job.dweight || job.dbias;
    C *bw = sums ? static_cast<C *>(scratch(2 * n * sizeof(C))) : nullptr, *bb = bw + n;

    struct Row {
        const G *dy;
        const S *x, *dtotal;
        S *dx;
        C shift, rstd, off, c1, c2; // x_hat = (x - shift) * rstd + off,  dx = (g + c1 + x_hat * c2) * rstd
    };
    auto prepare = [&](int64_t row) NK_LAMBDA {
        Row r;
        r.dy = static_cast<const G *>(job.dy) + job.dy_at.offset(row);
        r.x = static_cast<const S *>(job.x) + job.x_at.offset(row);
        r.dtotal = job.dtotal ? static_cast<const S *>(job.dtotal) + job.dtotal_at.offset(row) : nullptr;
        r.dx = job.dx ? static_cast<S *>(job.dx) + row * n : nullptr;
        r.shift = CENTER ? static_cast<const C *>(job.mean)[row] : C(0);
        r.rstd = static_cast<const C *>(job.rstd)[row];
        double s[3];
        auto add = [&](auto weighted) NK_LAMBDA {
            reduce<C>(n, s, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                V g = at.keep(at.load(r.dy + j)), d = at.keep(at.load(r.x + j) - r.shift);
                if (weighted.value) g = g * at.load(weight + j);
                acc[0] += d;
                acc[1] += g;
                acc[2] = madd(g, d, acc[2]);
            });
        };
        if (weight) add(std::true_type());
        else add(std::false_type());
        const double rest = CENTER ? s[0] * per : 0, rstd = r.rstd;
        r.off = C(-rest * rstd);
        r.c1 = CENTER ? C(-s[1] * per) : C(0);
        r.c2 = C(-rstd * (s[2] - rest * s[1]) * per);
        return r;
    };
    // The common case has weight and dx, wants both sums, and has no second output: two rows at a time.
    auto write = [&](auto how_many, auto common, const Row *from) NK_LAMBDA {
        constexpr int N = how_many.value;
        constexpr bool COMMON = common.value;
        Row r[N];
        for (int k = 0; k < N; ++k) r[k] = from[k];
        const Type rounded = job.rounded;
        const C *w0 = weight; // what a closure holds is read again after every store
        C *bw0 = bw, *bb0 = bb;
        update<C>(n, [&](auto at, int64_t j) NK_LAMBDA {
            V w = {}, sw = {}, sb = {};
            if (COMMON || w0) w = at.load(w0 + j);
            if (COMMON || sums) sw = at.load(bw0 + j);
            if (CENTER && (COMMON || sums)) sb = at.load(bb0 + j);
#pragma GCC unroll 2
            for (int k = 0; k < N; ++k) {
                V dy = at.load(r[k].dy + j);
                V x_hat = madd(at.load(r[k].x + j) - r[k].shift, all(r[k].rstd), all(r[k].off));
                if (COMMON || r[k].dx) {
                    V g = COMMON || w0 ? dy * w : dy;
                    V dx = madd(x_hat, all(r[k].c2), g + r[k].c1) * r[k].rstd;
                    if (!COMMON && r[k].dtotal) dx += at.load(r[k].dtotal + j);
                    at.store(r[k].dx + j, dx);
                }
                if (COMMON || sums) {
                    if (!COMMON && !CENTER && rounded != F64) x_hat = rounded_to(rounded, x_hat);
                    sw = madd(dy, x_hat, sw);
                    if (CENTER) sb += dy;
                }
            }
            if (COMMON || sums) at.store(bw0 + j, sw);
            if (CENTER && (COMMON || sums)) at.store(bb0 + j, sb);
        });
    };
    const bool common = weight && job.dx && sums && !job.dtotal && job.rounded == F64;
    auto flush = [&](const Row *r, int count) {
        using Two = std::integral_constant<int, 2>;
        using One = std::integral_constant<int, 1>;
        if (count == 2 && common) write(Two(), std::true_type(), r);
        else for (int k = 0; k < count; ++k) write(One(), std::false_type(), r + k);
    };

    for (int64_t chunk = begin; chunk < end; ++chunk) {
        double *dw = job.dweight ? job.dweight + chunk * n : nullptr;
        double *db = job.dbias ? job.dbias + chunk * n : nullptr;
        const int64_t last = least(job.rows, (chunk + 1) * job.chunk_rows);
        for (int64_t row = chunk * job.chunk_rows, first = row; row < last;) {
            bool fresh = row == first;
            if (sums) __builtin_memset(bw, 0, 2 * n * sizeof(C));
            const int64_t stop = least(last, row + BLOCK_ROWS);
            Row waiting[2];
            int count = 0;
            for (; row < stop; ++row) {
                // NaN, or 0: the row holds NaN or inf, and so does its gradient.
                const double rstd = static_cast<const C *>(job.rstd)[row];
                if (rstd == rstd && rstd != 0 && !ordinary<C>(1 / (rstd * rstd))) {
                    if (fresh && dw) __builtin_memset(dw, 0, n * sizeof(double));
                    if (fresh && db) __builtin_memset(db, 0, n * sizeof(double));
                    fresh = false;
                    careful_row(job, row, dw, db);
                    continue;
                }
                waiting[count++] = prepare(row);
                if (count == 2) flush(waiting, 2), count = 0;
            }
            if (count) flush(waiting, count);
            if (dw) add_up(dw, bw, n, fresh);
            if (db) add_up(db, bb, n, fresh);
        }
    }
}

template <bool CENTER> RowsForwardFn forward_for(Type x, Type residual) {
    if (x == F32 && residual == F32) return rows_forward<float, float, CENTER>;
    if (x == F64 && residual == F64) return rows_forward<double, double, CENTER>;
    if (x == BF16 && residual == BF16) return rows_forward<bf16, bf16, CENTER>;
    if (x == F16 && residual == F16) return rows_forward<f16, f16, CENTER>;
    if (x == BF16 && residual == F32) return rows_forward<bf16, float, CENTER>;
    if (x == F16 && residual == F32) return rows_forward<f16, float, CENTER>;
    return nullptr;
}
RowsForwardFn rows_forward_for(Type x, Type residual, bool center) {
    return center ? forward_for<true>(x, residual) : forward_for<false>(x, residual);
}

template <bool CENTER> RowsBackwardFn backward_for(Type dy, Type x) {
    if (dy == F32 && x == F32) return rows_backward<float, float, CENTER>;
    if (dy == F64 && x == F64) return rows_backward<double, double, CENTER>;
    if (dy == BF16 && x == BF16) return rows_backward<bf16, bf16, CENTER>;
    if (dy == F16 && x == F16) return rows_backward<f16, f16, CENTER>;
    if (dy == BF16 && x == F32) return rows_backward<bf16, float, CENTER>;
    if (dy == F16 && x == F32) return rows_backward<f16, float, CENTER>;
    return nullptr;
}
RowsBackwardFn rows_backward_for(Type dy, Type x, bool center) {
    return center ? backward_for<true>(dy, x) : backward_for<false>(dy, x);
}
