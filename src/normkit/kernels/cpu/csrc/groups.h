// Every other grouping: see Shape. Included inside namespace normkit::NK_ISA.
//
// Each pass goes over the data once. Moments of small parts are taken first, each about a number of its own, and
// are put together in double by the caller: exact for any mean, and the same for any number of threads.

// ---- spans: `i` neighbouring numbers of one channel (i > 1) ------------------------------------------------

// mean and m2 = sum of (x - mean)² of each span, over what the mask leaves
template <class T> void span_moments(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n;
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        int64_t count = n, valid = 0;
        if (mask) {
            count = 0;
            for (int64_t j = 0; j < n; ++j) count += mask[j];
            while (valid < n && !mask[valid]) ++valid;
        }
        job.part_count[span] = double(count);
        job.part_mean[span] = job.part_m2[span] = 0;
        if (!count) continue;
        const C first = widen(x[valid]);
        auto about = [&](auto at, int64_t j, C origin) NK_LAMBDA -> V {
            V d = at.keep(at.load(x + j) - origin);
            return mask ? (V)((I)d & at.template where<C>(mask + j)) : d;
        };
        double sum[1], sums[2];
        reduce<C>(n, sum, [&](auto at, int64_t j, V *acc) NK_LAMBDA { acc[0] += about(at, j, first); });
        const C shift = C(first + sum[0] / count);
        reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
            V d = about(at, j, shift);
            acc[0] += d;
            acc[1] += d * d;
        });
        const double rest = sums[0] / count;
        job.part_mean[span] = double(shift) + rest;
        job.part_m2[span] = sums[1] - rest * sums[0];
    }
}

template <class C> NK_INLINE C one(const void *values, int64_t k) { return static_cast<const C *>(values)[k]; }

// y = (x - hi - lo) * p + q
template <class T> void span_apply(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n;
        T *y = static_cast<T *>(job.y) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), lo = one<C>(job.lo, k), p = one<C>(job.p, k), q = one<C>(job.q, k);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        auto value = [&](auto at, int64_t j) NK_LAMBDA -> V { return ((at.load(x + j) - hi) - lo) * p + q; };
        if (mask)
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(y + j, (V)((I)value(at, j) & at.template where<C>(mask + j)));
            });
        else
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(y + j, value(at, j)); });
    }
}

// a = sum(dy), b = sum(dy * (x - mean)) of each span
template <class T> void span_sums(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n, *dy = static_cast<const T *>(job.dy) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), lo = one<C>(job.lo, k);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        double sums[2];
        if (mask)
            reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                I valid = at.template where<C>(mask + j);
                V d = (V)((I)((at.load(x + j) - hi) - lo) & valid), g = (V)((I)at.load(dy + j) & valid);
                acc[0] += g;
                acc[1] += g * d;
            });
        else
            reduce<C>(n, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                V g = at.load(dy + j);
                acc[0] += g;
                acc[1] += g * at.keep((at.load(x + j) - hi) - lo);
            });
        job.part_a[span] = sums[0];
        job.part_b[span] = sums[1];
    }
}

// dx = dy * p + q + (x - hi - lo) * t
template <class T> void span_gradient(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    using I = typename Vec<C>::I;
    const int64_t n = job.shape.i, channels = job.shape.channels();
    for (int64_t span = begin; span < end; ++span) {
        const T *x = static_cast<const T *>(job.x) + span * n, *dy = static_cast<const T *>(job.dy) + span * n;
        T *dx = static_cast<T *>(job.y) + span * n;
        const int64_t k = span / channels / job.shape.r1 * channels + span % channels;
        const C hi = one<C>(job.hi, k), lo = one<C>(job.lo, k), p = one<C>(job.p, k), q = one<C>(job.q, k),
                t = one<C>(job.t, k);
        const bool *mask = job.mask ? job.mask + span / channels * n : nullptr;
        auto value = [&](auto at, int64_t j) NK_LAMBDA -> V {
            return (at.load(dy + j) * p + q) + ((at.load(x + j) - hi) - lo) * t;
        };
        if (mask)
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA {
                at.store(dx + j, (V)((I)value(at, j) & at.template where<C>(mask + j)));
            });
        else
            map<C>(Whole(), n, [&](auto at, int64_t j) NK_LAMBDA { at.store(dx + j, value(at, j)); });
    }
}

// ---- columns: channels are neighbours in memory (i == 1) ---------------------------------------------------

// Where a task of moments or sums works: rows [row, last) of one k0, columns [from, from + width).
struct Piece {
    int64_t k0, chunk, row, last, from, width, part; // part: where its columns lie in part_*
};
NK_INLINE Piece piece_of(const Shape &s, int64_t task) {
    const int64_t J = s.channels(), tiles = (J + TILE - 1) / TILE, pieces = chunks(s.r1), each = chunk_rows(s.r1);
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

template <class T> void column_moments(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels();
    C s[TILE], q[TILE];
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
            __builtin_memset(s, 0, width * sizeof(C));
            __builtin_memset(q, 0, width * sizeof(C));
            const T *x = static_cast<const T *>(job.x) + piece.from, *first = x + rows[0] * J;
            auto add = [&](auto how_many, const int64_t *r) NK_LAMBDA {
                constexpr int N = how_many.value;
                map<C>(Whole(), width, [&](auto at, int64_t j) NK_LAMBDA {
                    V sj = at.load(s + j), qj = at.load(q + j), origin = at.load(first + j);
#pragma GCC unroll 4
                    for (int k = 0; k < N; ++k) {
                        V d = at.load(x + r[k] * J + j) - origin;
                        sj += d;
                        qj += d * d;
                    }
                    at.store(s + j, sj);
                    at.store(q + j, qj);
                });
            };
            int r = 1; // the first differs from itself by 0
            for (; r + 4 <= m; r += 4) add(std::integral_constant<int, 4>(), rows + r);
            for (; r < m; ++r) add(std::integral_constant<int, 1>(), rows + r);
            const double share = m / (seen + m), both = seen * share;
            for (int64_t j = 0; j < width; ++j) {
                const double rest = double(s[j]) / m, delta = double(widen(first[j])) + rest - mean[j];
                mean[j] += delta * share;
                m2[j] += (double(q[j]) - rest * s[j]) + delta * delta * both;
            }
            seen += m;
        }
        job.part_count[piece.k0 * chunks(job.shape.r1) + piece.chunk] = seen;
    }
}

// One row of y = (x - hi - lo) * p + q a task; with the weight along r1, times it.
template <class T> void column_apply(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    const int64_t J = job.shape.channels();
    for (int64_t row = begin; row < end; ++row) {
        const T *x = static_cast<const T *>(job.x) + row * J;
        T *y = static_cast<T *>(job.y) + row * J;
        if (job.mask && !job.mask[row]) {
            __builtin_memset(y, 0, J * sizeof(T));
            continue;
        }
        const int64_t k0 = row / job.shape.r1;
        const C *hi = static_cast<const C *>(job.hi) + k0 * J, *lo = static_cast<const C *>(job.lo) + k0 * J,
                *p = static_cast<const C *>(job.p) + k0 * J, *q = static_cast<const C *>(job.q) + k0 * J;
        if (job.weight_on_rows) {
            const C w = job.weight ? C(job.weight[row % job.shape.r1]) : C(1);
            const C b = job.bias ? C(job.bias[row % job.shape.r1]) : C(0);
            map<C>(Whole(), J, [&](auto at, int64_t j) NK_LAMBDA {
                auto x_hat = ((at.load(x + j) - at.load(hi + j)) - at.load(lo + j)) * at.load(p + j);
                at.store(y + j, x_hat * w + b);
            });
        } else {
            map<C>(Whole(), J, [&](auto at, int64_t j) NK_LAMBDA {
                auto d = (at.load(x + j) - at.load(hi + j)) - at.load(lo + j);
                at.store(y + j, d * at.load(p + j) + at.load(q + j));
            });
        }
    }
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
        const C *lo = static_cast<const C *>(job.lo) + piece.k0 * J + piece.from;
        double *sum_a = job.part_a + piece.part, *sum_b = job.part_b + piece.part;
        __builtin_memset(sum_a, 0, width * sizeof(double));
        __builtin_memset(sum_b, 0, width * sizeof(double));
        for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
            int64_t rows[BLOCK_ROWS];
            const int m = valid_rows(job, piece, row, rows);
            __builtin_memset(a, 0, width * sizeof(C));
            __builtin_memset(b, 0, width * sizeof(C));
            auto add = [&](auto how_many, const int64_t *r) NK_LAMBDA {
                constexpr int N = how_many.value;
                C w[N];
                for (int k = 0; k < N; ++k)
                    w[k] = job.weight_on_rows && job.weight ? C(job.weight[r[k] % job.shape.r1]) : C(1);
                map<C>(Whole(), width, [&](auto at, int64_t j) NK_LAMBDA {
                    V aj = at.load(a + j), bj = at.load(b + j), h = at.load(hi + j), l = at.load(lo + j);
#pragma GCC unroll 4
                    for (int k = 0; k < N; ++k) {
                        V g = at.load(dy + r[k] * J + j) * w[k];
                        aj += g;
                        bj += g * ((at.load(x + r[k] * J + j) - h) - l);
                    }
                    at.store(a + j, aj);
                    at.store(b + j, bj);
                });
            };
            int r = 0;
            for (; r + 4 <= m; r += 4) add(std::integral_constant<int, 4>(), rows + r);
            for (; r < m; ++r) add(std::integral_constant<int, 1>(), rows + r);
            for (int64_t j = 0; j < width; ++j) sum_a[j] += a[j], sum_b[j] += b[j];
        }
    }
}

// One row of dx = dy * p + q + (x - hi - lo) * t a task. With the weight along r1, p is rstd: it is multiplied by
// the weight, and the sums of dy and of dy * x_hat over the row are the row's share of the gradients.
template <class T> void column_gradient(const Groups &job, int64_t begin, int64_t end) {
    using C = typename Of<T>::C;
    using V = typename Vec<C>::V;
    const int64_t J = job.shape.channels();
    for (int64_t row = begin; row < end; ++row) {
        const T *x = static_cast<const T *>(job.x) + row * J, *dy = static_cast<const T *>(job.dy) + row * J;
        T *dx = static_cast<T *>(job.y) + row * J;
        if (job.mask && !job.mask[row]) {
            __builtin_memset(dx, 0, J * sizeof(T));
            if (job.weight_on_rows) job.row_a[row] = job.row_b[row] = 0;
            continue;
        }
        const int64_t k0 = row / job.shape.r1;
        const C *hi = static_cast<const C *>(job.hi) + k0 * J, *lo = static_cast<const C *>(job.lo) + k0 * J,
                *p = static_cast<const C *>(job.p) + k0 * J, *q = static_cast<const C *>(job.q) + k0 * J,
                *t = static_cast<const C *>(job.t) + k0 * J;
        if (job.weight_on_rows) {
            const C w = job.weight ? C(job.weight[row % job.shape.r1]) : C(1);
            double sums[2];
            reduce<C>(J, sums, [&](auto at, int64_t j, V *acc) NK_LAMBDA {
                V g = at.load(dy + j), d = (at.load(x + j) - at.load(hi + j)) - at.load(lo + j);
                V rstd = at.load(p + j);
                at.store(dx + j, (g * (rstd * w) + at.load(q + j)) + d * at.load(t + j));
                acc[0] += g;
                acc[1] += g * (d * rstd);
            });
            job.row_a[row] = sums[0];
            job.row_b[row] = sums[1];
        } else {
            map<C>(Whole(), J, [&](auto at, int64_t j) NK_LAMBDA {
                V d = (at.load(x + j) - at.load(hi + j)) - at.load(lo + j);
                at.store(dx + j, (at.load(dy + j) * at.load(p + j) + at.load(q + j)) + d * at.load(t + j));
            });
        }
    }
}
