// Every other grouping: see Shape. Included inside namespace normkit::NK_ISA.

template <class C> NK_INLINE C one(const void *values, int64_t k) { return static_cast<const C *>(values)[k]; }

// ---- groups that are neighbours in memory (r1 == 1, i > 1): in one go, while they are in the cache ----------

// y = (x - mean) * rstd * weight + bias, a group a task. A group whose squares leave the range of the compute
// dtype is left to the caller, which sees its variance.
template <class T> void group_forward(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    const int64_t i = job.shape.i, r3 = job.shape.r3, n = r3 * i;
    for (int64_t group = begin; group < end; ++group) {
        const T *x = static_cast<const T *>(job.x) + group * n;
        T *y = static_cast<T *>(job.y) + group * n;
        const Look<C> m = job.center ? look<true>(x, n) : look<false>(x, n);
        job.stats.mean[group] = double(m.shift) + m.rest;
        job.stats.var[group] = m.var;
        job.stats.count[group] = double(n);
        if (!ordinary<C>(m.var + job.eps)) continue;
        const double rstd = 1 / __builtin_sqrt(m.var + job.eps);
        const int64_t first = group % job.shape.k2 * r3;
        for (int64_t c = 0; c < r3; ++c) {
            const double scale = job.weight ? rstd * job.weight[first + c] : rstd;
            const C hi = m.shift, p = C(scale), q = C((job.bias ? job.bias[first + c] : 0) - m.rest * scale);
            const T *from = x + c * i;
            T *to = y + c * i;
            map<C>(Whole(), i, [&](auto at, int64_t j) NK_LAMBDA { at.store(to + j, madd(at.load(from + j) - hi, all(p), all(q))); });
        }
    }
}

// With g = dy * weight and d = x - mean:  dx = rstd * (g - mean(g) - d * rstd² * mean(g * d)). What each channel
// adds to the gradients of weight and bias goes to part_b and part_a.
template <class T> void group_backward(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t i = job.shape.i, r3 = job.shape.r3, n = r3 * i;
    for (int64_t group = begin; group < end; ++group) {
        const T *x = static_cast<const T *>(job.x) + group * n, *dy = static_cast<const T *>(job.dy) + group * n;
        T *dx = static_cast<T *>(job.y) + group * n;
        const double mean = job.stats.mean[group], rstd = 1 / __builtin_sqrt(job.stats.var[group] + job.eps);
        const C hi = C(mean);
        const double lo = mean - hi;
        double *a = job.part_a + group * r3, *b = job.part_b + group * r3, sum_g = 0, sum_gd = 0;
        const int64_t first = group % job.shape.k2 * r3;
        for (int64_t c = 0; c < r3; ++c) {
            double sums[2];
            const T *xc = x + c * i, *dyc = dy + c * i;
            reduce<C>(i, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                V g = at.keep(at.load(dyc + j));
                acc[0] += g;
                acc[1] = madd(g, at.keep(at.load(xc + j) - hi), acc[1]);
            });
            const double gd = sums[1] - lo * sums[0], w = job.weight ? job.weight[first + c] : 1;
            a[c] = sums[0];
            b[c] = gd * rstd;
            sum_g += w * sums[0];
            sum_gd += w * gd;
        }
        const double c1 = job.center ? sum_g / n : 0, slope = -rstd * rstd * rstd * sum_gd / n;
        for (int64_t c = 0; c < r3; ++c) {
            const C p = C(job.weight ? rstd * job.weight[first + c] : rstd), q = C(-rstd * c1 - lo * slope), t = C(slope);
            const T *xc = x + c * i, *dyc = dy + c * i;
            T *to = dx + c * i;
            map<C>(Whole(), i, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(to + j, madd(at.load(xc + j) - hi, all(t), madd(at.load(dyc + j), all(p), all(q))));
            });
        }
    }
}

// ---- spans: `i` neighbouring numbers of one channel (i > 1) -------------------------------------------------
// Moments of small parts are taken first, each about a number of its own, and are put together in double by the
// caller: exact for any mean, and the same for any number of threads.

// mean and m2 = sum of (x - mean)² of each span, over what the mask leaves
template <class T> void span_moments(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n;
        if (!job.mask) {
            const Look<C> m = look<true>(x, n);
            job.part_count[span] = double(n);
            job.part_mean[span] = double(m.shift) + m.rest;
            job.part_m2[span] = m.var * n;
            continue;
        }
        const bool *mask = job.mask + span / channels * n;
        int64_t count = 0, valid = 0;
        for (int64_t j = 0; j < n; ++j) count += mask[j];
        while (valid < n && !mask[valid]) ++valid;
        job.part_count[span] = double(count);
        job.part_mean[span] = job.part_m2[span] = 0;
        if (!count) continue;
        const C first = widen(x[valid]);
        auto about = [&](auto at, int64_t j, C origin) NK_LAMBDA -> V {
            return at.keep((V)((I)(at.load(x + j) - origin) & at.template where<C>(mask + j)));
        };
        double sum[1], sums[2];
        reduce<C>(n, sum, [&](auto at, int64_t j, V *acc) NK_LAMBDA { acc[0] += about(at, j, first); });
        const C shift = C(first + sum[0] / count);
        reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V d = about(at, j, shift);
            acc[0] += d;
            acc[1] = madd(d, d, acc[1]);
        });
        const double rest = sums[0] / count;
        job.part_mean[span] = double(shift) + rest;
        job.part_m2[span] = sums[1] - rest * sums[0];
    }
}

// y = (x - hi) * p + q
template <class T> void span_apply(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n;
        T *y = static_cast<T *>(job.y) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), p = one<C>(job.p, k), q = one<C>(job.q, k);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        if (mask)
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(y + j, (V)((I)madd(at.load(x + j) - hi, all(p), all(q)) & at.template where<C>(mask + j)));
            });
        else
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(y + j, madd(at.load(x + j) - hi, all(p), all(q))); });
    }
}

// a = sum(dy), b = sum(dy * (x - hi)) of each span; without a mask also dx = dy * p, if there is a place for it
template <class T> void span_sums(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n, *dy = static_cast<const T *>(job.dy) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), p = job.y ? one<C>(job.p, k) : C(0);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        T *dx = job.y ? static_cast<T *>(job.y) + span * n : nullptr;
        double sums[2];
        if (mask)
            reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                I valid = at.template where<C>(mask + j);
                V d = (V)((I)(at.load(x + j) - hi) & valid), g = at.keep((V)((I)at.load(dy + j) & valid));
                acc[0] += g;
                acc[1] = madd(g, d, acc[1]);
            });
        else
            reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                V g = at.load(dy + j);
                if (dx) at.store(dx + j, g * p);
                g = at.keep(g);
                acc[0] += g;
                acc[1] = madd(g, at.keep(at.load(x + j) - hi), acc[1]);
            });
        job.part_a[span] = sums[0];
        job.part_b[span] = sums[1];
    }
}

// dx = dy * p + q + (x - hi) * t
template <class T> void span_gradient(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n, *dy = static_cast<const T *>(job.dy) + span * n;
        T *dx = static_cast<T *>(job.y) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), p = one<C>(job.p, k), q = one<C>(job.q, k), t = one<C>(job.t, k);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        auto value = [&](auto at, int64_t j) NK_LAMBDA -> V {
            return madd(at.load(x + j) - hi, all(t), madd(at.load(dy + j), all(p), all(q)));
        };
        if (mask)
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(dx + j, (V)((I)value(at, j) & at.template where<C>(mask + j)));
            });
        else
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(dx + j, value(at, j)); });
    }
}

// ---- columns: channels are neighbours in memory (i == 1) ----------------------------------------------------

// Where a task of moments or sums works: rows [row, last) of one k0, columns [from, from + width).
struct Piece {
    int64_t k0, chunk, row, last, from, width, part; // part: where its columns lie in part_*
};
NK_INLINE Piece piece_of(const Shape &s, int64_t task) {
    const int64_t J = s.channels(), tiles = (J + TILE - 1) / TILE, pieces = chunks(s), each = chunk_rows(s);
    Piece p;
    p.from = task % tiles * TILE;
    p.width = least(TILE, J - p.from);
    p.chunk = task / tiles % pieces;
    p.k0 = task / tiles / pieces;
    p.row = p.chunk * each;
    p.last = least(s.r1, p.row + each);
    p.part = (p.k0 * pieces + p.chunk) * J + p.from;
    return p;
}
// The rows of the next block that the mask leaves; how many.
NK_INLINE int valid_rows(const Groups &job, const Piece &p, int64_t row, int64_t *rows) {
    const int64_t stop = least(p.last, row + BLOCK_ROWS), base = p.k0 * job.shape.r1;
    int m = 0;
    for (; row < stop; ++row)
        if (!job.mask || job.mask[base + row]) rows[m++] = base + row;
    return m;
}
using Four = std::integral_constant<int, 4>;
using One = std::integral_constant<int, 1>;

// Columns four registers at a time, whose sums over the rows of a block stay in registers.
template <class C, class Body> NK_INLINE void columns(int64_t width, Body body) {
    constexpr int64_t W = LANES<C>;
    int64_t j = 0;
    for (; j + 4 * W <= width; j += 4 * W) body(Whole(), Four(), j);
    for (; j + W <= width; j += W) body(Whole(), One(), j);
    if (j < width) body(End{width - j, false}, One(), j);
}

template <class T> void column_moments(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels();
    C s[TILE], q[TILE], o[TILE];
    for (int64_t task = begin; task < end; ++task) {
        const Piece piece = piece_of(job.shape, task);
        const int64_t width = piece.width;
        double *mean = job.part_mean + piece.part, *m2 = job.part_m2 + piece.part, seen = 0;
        __builtin_memset(mean, 0, width * sizeof(double));
        __builtin_memset(m2, 0, width * sizeof(double));
        for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
            int64_t rows[BLOCK_ROWS];
            const int m = valid_rows(job, piece, row, rows);
            if (!m) continue;
            const T *x = static_cast<const T *>(job.x) + piece.from, *first = x + rows[0] * J;
            columns<C>(width, [&](auto at, auto how_many, int64_t j) NK_LAMBDA {
                constexpr int N = how_many.value, W = LANES<C>;
                V sj[N], qj[N], origin[N];
#pragma GCC unroll 4
                for (int u = 0; u < N; ++u) sj[u] = qj[u] = V{}, origin[u] = at.load(first + j + u * W);
                for (int r = 1; r < m; ++r) { // the first differs from itself by 0
                    const T *row = x + rows[r] * J + j;
#pragma GCC unroll 4
                    for (int u = 0; u < N; ++u) {
                        V d = at.load(row + u * W) - origin[u];
                        sj[u] += d;
                        qj[u] = madd(d, d, qj[u]);
                    }
                }
                for (int u = 0; u < N; ++u)
                    at.store(s + j + u * W, sj[u]), at.store(q + j + u * W, qj[u]), at.store(o + j + u * W, origin[u]);
            });
            const double share = m / (seen + m), both = seen * share, per = 1.0 / m;
            in_double(width, [&](auto at, int64_t j) NK_LAMBDA {
                const auto sum = at(s + j), rest = sum * per, delta = at(o + j) + rest - at(mean + j);
                at(mean + j, at(mean + j) + delta * share);
                at(m2 + j, at(m2 + j) + (at(q + j) - rest * sum) + delta * delta * both);
            });
            seen += m;
        }
        job.part_count[piece.k0 * chunks(job.shape) + piece.chunk] = seen;
    }
}

// Rows [begin, end) of all k0, four at a time, so that what belongs to a column is loaded once for all of them:
// block(k0, row, how many).
template <class Block> NK_INLINE void row_blocks(const Groups &job, int64_t begin, int64_t end, Block block) {
    for (int64_t row = begin; row < end;) {
        const int64_t k0 = row / job.shape.r1, last = least(end, (k0 + 1) * job.shape.r1);
        for (; row + 4 <= last; row += 4) block(k0, row, Four());
        for (; row < last; ++row) block(k0, row, One());
    }
}

// y = (x - hi) * p + q; with the weight along r1, p is rstd, and weight and bias are applied row by row.
template <class T> void column_apply(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels(), r1 = job.shape.r1;
    row_blocks(job, begin, end, [&](int64_t k0, int64_t row, auto how_many) NK_LAMBDA {
        constexpr int N = how_many.value;
        const T *x = static_cast<const T *>(job.x) + row * J;
        T *y = static_cast<T *>(job.y) + row * J;
        const C *hi = static_cast<const C *>(job.hi) + k0 * J, *p = static_cast<const C *>(job.p) + k0 * J,
                *q = static_cast<const C *>(job.q) + k0 * J;
        C w[N], b[N];
        for (int k = 0; k < N; ++k) {
            w[k] = job.weight_on_rows && job.weight ? C(job.weight[row + k - k0 * r1]) : C(1);
            b[k] = job.weight_on_rows && job.bias ? C(job.bias[row + k - k0 * r1]) : C(0);
        }
        map<C>(Whole(), J, [&](auto at, int64_t j) NK_LAMBDA {
            const V h = at.load(hi + j), pj = at.load(p + j), qj = at.load(q + j);
#pragma GCC unroll 4
            for (int k = 0; k < N; ++k) {
                V v = madd(at.load(x + k * J + j) - h, pj, qj);
                if (job.weight_on_rows) v = madd(v, all(w[k]), all(b[k]));
                at.store(y + k * J + j, v);
            }
        });
        for (int k = 0; job.mask && k < N; ++k)
            if (!job.mask[row + k]) __builtin_memset(y + k * J, 0, J * sizeof(T));
    });
}

template <class T> void column_sums(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels();
    C a[TILE], b[TILE];
    for (int64_t task = begin; task < end; ++task) {
        const Piece piece = piece_of(job.shape, task);
        const int64_t width = piece.width;
        const T *x = static_cast<const T *>(job.x) + piece.from, *dy = static_cast<const T *>(job.dy) + piece.from;
        const C *hi = static_cast<const C *>(job.hi) + piece.k0 * J + piece.from;
        const C *p = job.y ? static_cast<const C *>(job.p) + piece.k0 * J + piece.from : nullptr;
        T *dx = static_cast<T *>(job.y) + piece.from;
        double *sum_a = job.part_a + piece.part, *sum_b = job.part_b + piece.part;
        for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
            int64_t rows[BLOCK_ROWS];
            const int m = valid_rows(job, piece, row, rows);
            C w[BLOCK_ROWS];
            for (int r = 0; job.weight_on_rows && r < m; ++r)
                w[r] = job.weight ? C(job.weight[rows[r] - piece.k0 * job.shape.r1]) : C(1);
            columns<C>(width, [&](auto at, auto how_many, int64_t j) NK_LAMBDA {
                constexpr int N = how_many.value, W = LANES<C>;
                V aj[N], bj[N], h[N], pj[N];
#pragma GCC unroll 4
                for (int u = 0; u < N; ++u) {
                    aj[u] = bj[u] = V{};
                    h[u] = at.load(hi + j + u * W);
                    pj[u] = p ? at.load(p + j + u * W) : V{};
                }
                for (int r = 0; r < m; ++r) {
                    const int64_t row = rows[r] * J + j;
#pragma GCC unroll 4
                    for (int u = 0; u < N; ++u) {
                        V g = at.load(dy + row + u * W);
                        if (p) at.store(dx + row + u * W, g * pj[u]);
                        if (job.weight_on_rows) g = g * w[r];
                        aj[u] += g;
                        bj[u] = madd(g, at.load(x + row + u * W) - h[u], bj[u]);
                    }
                }
                for (int u = 0; u < N; ++u) at.store(a + j + u * W, aj[u]), at.store(b + j + u * W, bj[u]);
            });
            add_up(sum_a, a, width, row == piece.row);
            add_up(sum_b, b, width, row == piece.row);
        }
    }
}

// dx = dy * p + q + (x - hi) * t. With the weight along r1, p is rstd: it is multiplied by the weight, and the sums
// of dy and of dy * x_hat over a row are the row's share of the gradients.
template <class T> void column_gradient(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels();
    row_blocks(job, begin, end, [&](int64_t k0, int64_t row, auto how_many) NK_LAMBDA {
        constexpr int N = how_many.value;
        const T *x = static_cast<const T *>(job.x) + row * J, *dy = static_cast<const T *>(job.dy) + row * J;
        T *dx = static_cast<T *>(job.y) + row * J;
        const C *hi = static_cast<const C *>(job.hi) + k0 * J, *p = static_cast<const C *>(job.p) + k0 * J,
                *q = static_cast<const C *>(job.q) + k0 * J, *t = static_cast<const C *>(job.t) + k0 * J;
        if (job.weight_on_rows) {
            const C *s = static_cast<const C *>(job.s) + k0 * J;
            for (int k = 0; k < N; ++k) {
                const T *xk = x + k * J, *dyk = dy + k * J;
                T *dxk = dx + k * J;
                const C w = job.weight ? C(job.weight[row + k - k0 * job.shape.r1]) : C(1);
                double sums[2];
                reduce<C>(J, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                    V g = at.load(dyk + j), d = at.load(xk + j) - at.load(hi + j), rstd = at.load(p + j);
                    at.store(dxk + j, madd(d, at.load(t + j), madd(g, rstd * w, at.load(q + j))));
                    acc[0] += at.keep(g);
                    acc[1] = madd(at.keep(g), madd(d, rstd, at.load(s + j)), acc[1]);
                });
                job.row_a[row + k] = sums[0];
                job.row_b[row + k] = sums[1];
            }
        } else {
            map<C>(Whole(), J, [&](auto at, int64_t j) NK_LAMBDA {
                const V h = at.load(hi + j), pj = at.load(p + j), qj = at.load(q + j), tj = at.load(t + j);
#pragma GCC unroll 4
                for (int k = 0; k < N; ++k)
                    at.store(dx + k * J + j, madd(at.load(x + k * J + j) - h, tj, madd(at.load(dy + k * J + j), pj, qj)));
            });
        }
        for (int k = 0; job.mask && k < N; ++k)
            if (!job.mask[row + k]) {
                __builtin_memset(dx + k * J, 0, J * sizeof(T));
                if (job.weight_on_rows) job.row_a[row + k] = job.row_b[row + k] = 0;
            }
    });
}
