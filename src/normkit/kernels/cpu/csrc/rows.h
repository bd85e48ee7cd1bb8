// LayerNorm and RMSNorm of rows of neighbouring numbers. Included inside namespace normkit::NK_ISA.

template <class X, class R> struct Wider { using T = X; };
template <> struct Wider<bf16, float> { using T = float; };
template <> struct Wider<f16, float> { using T = float; };

// Squares outside of these bounds have lost digits, or all of them: such a row is done in long double.
template <class C> NK_INLINE bool ordinary(double var) {
    return sizeof(C) == 4 ? var > 1e-30 && var < 1e37 : var > 1e-290 && var < 1e307;
}

// Mean and variance of n neighbours.
//
//   shift = mean of the first few x   any number close to the mean will do; this one is x if all are equal
//   d     = x - shift                 exact, or nearly
//   rest  = mean(d)                   how far shift is off
//   var   = mean(d²) - rest²          cancels little, since rest is small against the spread
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
    const double per = 1.0 / n;
    Look<C> m = {0, 0, 0};
    if (!CENTER) {
        double square[1];
        reduce<C>(n, square, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V v = at.load(s + j);
            acc[0] += v * v;
        });
        m.var = square[0] * per;
        return m;
    }
    double few[1], sums[2];
    const int64_t start = least(n, 4 * LANES<C>);
    reduce<C>(start, few, [&](auto at, int64_t j, V *acc) NK_LAMBDA { acc[0] += at.load(s + j); });
    m.shift = C(few[0] / start);
    for (int times = 0; times < 2; ++times) {
        const C shift = m.shift;
        reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V d = at.keep(at.load(s + j) - shift);
            acc[0] += d;
            acc[1] += d * d;
        });
        m.rest = sums[0] * per;
        m.var = sums[1] * per - m.rest * m.rest;
        if (4 * m.rest * m.rest <= m.var) break;
        if (times == 0) m.shift = C(shift + m.rest);
    }
    return m;
}

// y = (x - shift - rest) * rstd * weight + bias
template <class X, class R, bool CENTER>
void rows_forward(const RowsForward &job, int64_t begin, int64_t end) {
    using S = typename Wider<X, R>::T;
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    const int64_t n = job.dim;
    const C *weight = static_cast<const C *>(job.weight), *bias = static_cast<const C *>(job.bias);
    for (int64_t row = begin; row < end; ++row) {
        const X *x = static_cast<const X *>(job.x) + job.x_at.offset(row);
        X *y = static_cast<X *>(job.y) + row * n;
        const S *s = reinterpret_cast<const S *>(x);
        if (job.residual) {
            const R *residual = static_cast<const R *>(job.residual) + job.residual_at.offset(row);
            S *sum = static_cast<S *>(job.total) + row * n;
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(sum + j, at.load(x + j) + at.load(residual + j));
            });
            s = sum;
        }
        const Look<C> m = look<CENTER>(s, n);
        const double var = m.var;
        const C shift = m.shift;
        if (!ordinary<C>(var + job.eps)) {
            careful_row(job, row);
            continue;
        }
        const C rstd = C(1 / __builtin_sqrt(var + job.eps)), off = C(m.rest);
        if (CENTER && job.mean) static_cast<C *>(job.mean)[row] = shift;
        if (job.rstd) static_cast<C *>(job.rstd)[row] = rstd;
        const X *next = row + 1 < end ? static_cast<const X *>(job.x) + job.x_at.offset(row + 1) : x;
        auto x_hat = [&](auto at, int64_t j) NK_LAMBDA -> V {
            __builtin_prefetch(next + j); // reading the next row overlaps with writing this one
            return ((at.load(s + j) - shift) - off) * rstd;
        };
        auto write = [&](auto at) NK_LAMBDA {
            if (!CENTER && job.rounded != F64)
                map<C>(at, n, [&](auto at, int64_t j) NK_LAMBDA {
                    at.output(y + j, rounded_to(job.rounded, x_hat(at, j)) * at.load(weight + j));
                });
            else if (weight && (bias || !CENTER))
                map<C>(at, n, [&](auto at, int64_t j) NK_LAMBDA {
                    V v = x_hat(at, j) * at.load(weight + j);
                    at.output(y + j, CENTER ? v + at.load(bias + j) : v);
                });
            else
                map<C>(at, n, [&](auto at, int64_t j) NK_LAMBDA {
                    V v = x_hat(at, j);
                    if (weight) v = v * at.load(weight + j);
                    if (bias) v = v + at.load(bias + j);
                    at.output(y + j, v);
                });
        };
        if (job.stream) write(Streaming());
        else write(Whole());
    }
}

// With g = dy * weight,
//
//   dx      = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) + dtotal       RMSNorm: without mean(g)
//   dweight = sum over rows of dy * x_hat,   dbias = sum over rows of dy
//
// Rows are cut into chunks by shape alone. Within a chunk, registers add up at most BLOCK_ROWS rows, four at a
// time; blocks are added in double.
template <class G, class S, bool CENTER>
void rows_backward(const RowsBackward &job, int64_t begin, int64_t end) {
    using C = typename Of<S>::C;
    using V = typename Vec<C>::V;
    const int64_t n = job.dim;
    const C *weight = static_cast<const C *>(job.weight);
    const bool sums = job.dweight || job.dbias;
    C *bw = sums ? static_cast<C *>(scratch(2 * n * sizeof(C))) : nullptr, *bb = bw + n;

    struct Row {
        const G *dy;
        const S *x, *dtotal;
        S *dx;
        C shift, rest, rstd, c1, c2;
    };
    auto prepare = [&](int64_t row) {
        Row r;
        r.dy = static_cast<const G *>(job.dy) + job.dy_at.offset(row);
        r.x = static_cast<const S *>(job.x) + job.x_at.offset(row);
        r.dtotal = job.dtotal ? static_cast<const S *>(job.dtotal) + job.dtotal_at.offset(row) : nullptr;
        r.dx = job.dx ? static_cast<S *>(job.dx) + row * n : nullptr;
        r.shift = CENTER ? static_cast<const C *>(job.mean)[row] : C(0);
        r.rstd = static_cast<const C *>(job.rstd)[row];
        double s[3];
        reduce<C>(n, s, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V g = at.load(r.dy + j);
            if (weight) g = g * at.load(weight + j);
            V d = CENTER ? at.keep(at.load(r.x + j) - r.shift) : at.load(r.x + j);
            acc[0] += d;
            acc[1] += g;
            acc[2] += g * d;
        });
        const double rest = CENTER ? s[0] / n : 0;
        r.rest = C(rest);
        r.c1 = CENTER ? C(s[1] / n) : C(0);
        r.c2 = C((s[2] - rest * s[1]) / n * r.rstd);
        return r;
    };
    auto write = [&](auto how_many, const Row *r) NK_LAMBDA {
        constexpr int N = how_many.value;
        map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
            V w = {}, sw = {}, sb = {};
            if (weight) w = at.load(weight + j);
            if (sums) sw = at.load(bw + j), sb = at.load(bb + j);
#pragma GCC unroll 4
            for (int k = 0; k < N; ++k) {
                V dy = at.load(r[k].dy + j);
                V x_hat = ((at.load(r[k].x + j) - r[k].shift) - r[k].rest) * r[k].rstd;
                if (r[k].dx) {
                    V g = weight ? dy * w : dy;
                    V dx = ((g - r[k].c1) - x_hat * r[k].c2) * r[k].rstd;
                    if (r[k].dtotal) dx += at.load(r[k].dtotal + j);
                    at.store(r[k].dx + j, dx);
                }
                if (sums) {
                    if (!CENTER && job.rounded != F64) x_hat = rounded_to(job.rounded, x_hat);
                    sw += dy * x_hat;
                    sb += dy;
                }
            }
            if (sums) at.store(bw + j, sw), at.store(bb + j, sb);
        });
    };

    for (int64_t chunk = begin; chunk < end; ++chunk) {
        double *dw = job.dweight ? job.dweight + chunk * n : nullptr;
        double *db = job.dbias ? job.dbias + chunk * n : nullptr;
        if (dw) __builtin_memset(dw, 0, n * sizeof(double));
        if (db) __builtin_memset(db, 0, n * sizeof(double));
        const int64_t last = least(job.rows, (chunk + 1) * job.chunk_rows);
        for (int64_t row = chunk * job.chunk_rows; row < last;) {
            if (sums) __builtin_memset(bw, 0, 2 * n * sizeof(C));
            const int64_t stop = least(last, row + BLOCK_ROWS);
            Row waiting[4];
            int count = 0;
            for (; row < stop; ++row) {
                const double rstd = static_cast<const C *>(job.rstd)[row];
                if (!ordinary<C>(1 / (rstd * rstd))) {
                    careful_row(job, row, dw, db);
                    continue;
                }
                waiting[count++] = prepare(row);
                if (count == 4) write(std::integral_constant<int, 4>(), waiting), count = 0;
            }
            for (int k = 0; k < count; ++k) write(std::integral_constant<int, 1>(), waiting + k);
            for (int64_t j = 0; dw && j < n; ++j) dw[j] += bw[j];
            for (int64_t j = 0; db && j < n; ++j) db[j] += bb[j];
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
