// Passes over columns: channels are neighbours in memory (i == 1). Included inside namespace normkit::NK_ISA.

// The rows of the next block that the mask leaves, counted from the first of all k0; how many.
NK_INLINE int valid_rows(const Groups &job, const Piece &p, int64_t row, int64_t *rows) {
    const int64_t stop = least(p.last, row + BLOCK_ROWS), base = p.k0 * job.shape.r1;
    int m = 0;
    for (; row < stop; ++row)
        if (!job.mask || job.mask[base + row]) rows[m++] = base + row;
    return m;
}

// Sums of a block of rows, one for each column, in the order of T's registers; the rim has a place of its own.
template <class T> struct Sums {
    Compute<T> values[TILE + PAIR<T>];
    NK_INLINE void natural(const Walk<T> &walk, Compute<T> *to) const {
        for (int64_t j = 0; j < walk.full; j += PAIR<T>) put_wide<T>(to + j, load2(values + j));
        if (walk.tail) put_wide<T>(to + walk.rim, load2(values + walk.full));
    }
};
// body(at, column, place of its sums)
template <class T, class Body> NK_INLINE void columns(const Walk<T> &walk, Body body) {
    for (int64_t j = 0; j < walk.full; j += PAIR<T>) body(Full<T>(), j, j);
    if (walk.tail) body(Rim<T>{walk}, walk.rim, walk.full);
}
// A few rows at a time, so that memory is read in a few long streams and what belongs to a column is loaded once for
// all of them: body(first, how many).
template <int N, class Body> NK_INLINE void few_at_a_time(int64_t begin, int64_t end, Body body) {
    int64_t r = begin;
    for (; r + N <= end; r += N) body(r, std::integral_constant<int, N>());
    for (; r < end; ++r) body(r, One());
}

// mean and m2 of every channel of the piece, over its rows. In a block of rows
//
//   origin = mean of eight rows   how far it is off the mean of all is at most sqrt(7) times the spread
//   d      = x - origin,  mean = origin + mean(d),  m2 = sum(d²) - sum(d)² / m
template <class T> void column_moments(const Groups &job, const Piece &p) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels();
    const Walk<T> walk(p.width);
    Sums<T> sum, square, origin;
    C s[TILE + PAIR<T>], q[TILE + PAIR<T>], o[TILE + PAIR<T>];
    double seen = 0;
    for (int64_t row = p.row; row < p.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, p, row, rows), few = int(least(m, 8));
        if (!m) continue;
        const T *x = static_cast<const T *>(job.x) + p.from;
        columns(walk, [&](auto at, int64_t j, int64_t place) NK_LAMBDA {
            const Two<Reg<T>> first = at.load(x + rows[0] * J + j);
            Two<Reg<T>> off = both(C(0));
            for (int r = 1; r < few; ++r) off = off + (at.load(x + rows[r * m / few] * J + j) - first);
            store2(origin.values + place, madd(off, both(C(1) / few), first));
        });
        few_at_a_time<8>(0, m, [&](int64_t r, auto how_many) NK_LAMBDA {
            constexpr int N = how_many.value;
            const T *from[N];
            for (int k = 0; k < N; ++k) from[k] = x + rows[r + k] * J;
            columns(walk, [&](auto at, int64_t j, int64_t place) NK_LAMBDA {
                const Two<Reg<T>> shift = load2(origin.values + place);
                Two<Reg<T>> a = both(C(0)), b = a;
                if (r > 0) a = load2(sum.values + place), b = load2(square.values + place);
#pragma GCC unroll 8
                for (int k = 0; k < N; ++k) {
                    const Two<Reg<T>> d = at.load(from[k] + j) - shift;
                    a = a + d;
                    b = madd(d, d, b);
                }
                store2(sum.values + place, a);
                store2(square.values + place, b);
            });
        });
        sum.natural(walk, s), square.natural(walk, q), origin.natural(walk, o);
        const double per = 1.0 / m;
        merge(p.width, p.a, p.b, seen, m, [&](auto at, int64_t j) NK_LAMBDA { return at(o + j) + at(s + j) * per; },
              [&](auto at, int64_t j) NK_LAMBDA { return at(q + j) - at(s + j) * at(s + j) * per; });
        seen += m;
    }
    *p.count = seen;
}

// value(at, row, j, what belongs to the columns) to N rows. The rim is read before anything is written.
template <class T, int N, class Column, class Value>
NK_INLINE void write_rows(const Walk<T> &walk, T *to, int64_t J, Column column, Value value) {
    const Rim<T> rim{walk};
    Two<Reg<T>> last[N];
    for (int k = 0; N == 1 && k < N; ++k) last[k] = both(Compute<T>(0)); // GCC 12 believes that it is read without
    if (walk.tail) {
        const auto c = column(walk.rim);
        for (int k = 0; k < N; ++k) last[k] = value(rim, k, walk.rim, c);
    }
    for (int64_t j = 0; j < walk.full; j += PAIR<T>) {
        const auto c = column(j);
#pragma GCC unroll 8
        for (int k = 0; k < N; ++k) store2(to + k * J + j, value(Full<T>(), k, j, c));
    }
    for (int k = 0; walk.tail && k < N; ++k) rim.store(to + k * J + walk.rim, last[k]);
}
template <class V> struct Coefficients { Two<V> hi, p, q, t; };

template <class T> NK_INLINE void clear_masked(const Groups &job, const Piece &p, int64_t row, int64_t rows, T *y) {
    for (int64_t k = 0; job.mask && k < rows; ++k)
        if (!job.mask[row + k]) __builtin_memset(y + k * job.shape.channels(), 0, p.width * sizeof(T));
}

// y = (x - hi) * p + q; with the weight along r1, p is rstd, and weight and bias are applied row by row.
template <class T> void column_apply(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels(), base = piece.k0 * job.shape.r1;
    const Walk<T> walk(piece.width);
    const C *hi = static_cast<const C *>(piece.hi), *p = static_cast<const C *>(piece.p), *q = static_cast<const C *>(piece.q);
    auto column = [&](int64_t j) NK_LAMBDA { return Coefficients<Reg<T>>{wide<T>(hi + j), wide<T>(p + j), wide<T>(q + j), {}}; };
    few_at_a_time<ODD_EVEN<T> ? 8 : 4>(base + piece.row, base + piece.last, [&](int64_t row, auto how_many) NK_LAMBDA {
        constexpr int N = how_many.value;
        const T *x = static_cast<const T *>(job.x) + row * J + piece.from;
        T *y = static_cast<T *>(job.y) + row * J + piece.from;
        if (job.row_weight) {
            C w[N], b[N];
            for (int k = 0; k < N; ++k) w[k] = C(job.row_weight[row + k - base]), b[k] = C(job.row_bias[row + k - base]);
            write_rows<T, N>(walk, y, J, column, [&](auto at, int k, int64_t j, auto c) NK_LAMBDA {
                return madd(madd(at.load(x + k * J + j) - c.hi, c.p, c.q), both(w[k]), both(b[k]));
            });
        } else {
            write_rows<T, N>(walk, y, J, column, [&](auto at, int k, int64_t j, auto c) NK_LAMBDA {
                return madd(at.load(x + k * J + j) - c.hi, c.p, c.q);
            });
        }
        clear_masked(job, piece, row, N, y);
    });
}

// a = sum(g), b = sum(g * (x - hi)) of every channel of the piece, over its rows, where g is dy, or dy * weight if
// that lies along r1; and dx = dy * p, if asked for
template <class T> void column_sums(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels(), width = piece.width, base = piece.k0 * job.shape.r1;
    const Walk<T> walk(width);
    const T *x = static_cast<const T *>(job.x) + piece.from, *dy = static_cast<const T *>(job.dy) + piece.from;
    T *dx = static_cast<T *>(job.y) + piece.from;
    const C *hi = static_cast<const C *>(piece.hi), *p = static_cast<const C *>(piece.p);
    Sums<T> sum_a, sum_b;
    C a[TILE + PAIR<T>], b[TILE + PAIR<T>];
    for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, piece, row, rows);
        auto block = [&](auto weighted, auto writes) NK_LAMBDA {
            few_at_a_time<4>(0, m, [&](int64_t r, auto how_many) NK_LAMBDA {
                constexpr int N = how_many.value;
                int64_t from[N];
                Two<Reg<T>> w[N];
                for (int k = 0; k < N; ++k) {
                    from[k] = rows[r + k] * J;
                    if (weighted.value) w[k] = both(C(job.row_weight[rows[r + k] - base]));
                }
                columns(walk, [&](auto at, int64_t j, int64_t place) NK_LAMBDA {
                    const Two<Reg<T>> h = wide<T>(hi + j), pj = wide<T>(p + j);
                    Two<Reg<T>> aj = both(C(0)), bj = aj;
                    if (r > 0) aj = load2(sum_a.values + place), bj = load2(sum_b.values + place);
#pragma GCC unroll 4
                    for (int k = 0; k < N; ++k) {
                        Two<Reg<T>> g = at.load(dy + from[k] + j);
                        if (writes.value) at.store(dx + from[k] + j, g * pj);
                        if (weighted.value) g = g * w[k];
                        aj = aj + g;
                        bj = madd(g, at.load(x + from[k] + j) - h, bj);
                    }
                    store2(sum_a.values + place, aj);
                    store2(sum_b.values + place, bj);
                });
            });
        };
        if (piece.write) block(std::false_type(), std::true_type());
        else if (job.row_weight) block(std::true_type(), std::false_type());
        else block(std::false_type(), std::false_type());
        if (m) sum_a.natural(walk, a), sum_b.natural(walk, b);
        else __builtin_memset(a, 0, width * sizeof(C)), __builtin_memset(b, 0, width * sizeof(C));
        const bool fresh = row == piece.row;
        in_lanes(width, [&](auto at, int64_t j) NK_LAMBDA {
            at(piece.a + j, fresh ? at(a + j) : at(piece.a + j) + at(a + j));
            at(piece.b + j, fresh ? at(b + j) : at(piece.b + j) + at(b + j));
        });
    }
    if (piece.write) clear_masked(job, piece, base + piece.row, piece.last - piece.row, dx + (base + piece.row) * J);
}

// dx = dy * p + q + (x - hi) * t; without t, dx = dy * p. With the weight along r1, p is rstd: it is multiplied by the
// weight, and the sums of dy and of dy * x_hat over a row, x_hat = (x - hi) * p + s, are the row's share of the
// gradients.
template <class T> void column_gradient(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels(), base = piece.k0 * job.shape.r1;
    const Walk<T> walk(piece.width);
    const C *hi = static_cast<const C *>(piece.hi), *p = static_cast<const C *>(piece.p), *q = static_cast<const C *>(piece.q),
            *t = static_cast<const C *>(piece.t), *s = static_cast<const C *>(piece.s);
    few_at_a_time<4>(base + piece.row, base + piece.last, [&](int64_t row, auto how_many) NK_LAMBDA {
        constexpr int N = how_many.value;
        const T *x = static_cast<const T *>(job.x) + row * J + piece.from, *dy = static_cast<const T *>(job.dy) + row * J + piece.from;
        T *dx = static_cast<T *>(job.y) + row * J + piece.from;
        if (job.row_weight) {
            for (int k = 0; k < N; ++k) {
                const int64_t r1 = row + k - base;
                const auto w = both(C(job.row_weight[r1]));
                double sums[2][1] = {{0}, {0}};
                if (!job.mask || job.mask[row + k])
                    add_spans<T, 1>(walk, sums, [&](auto at, int, int64_t j, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
                        Two<Reg<T>> g = at.load(dy + k * J + j), d = at.load(x + k * J + j) - wide<T>(hi + j);
                        const Two<Reg<T>> rstd = wide<T>(p + j);
                        at.store(dx + k * J + j, t ? madd(d, wide<T>(t + j), madd(g, rstd * w, wide<T>(q + j))) : g * (rstd * w));
                        g = at.keep(g), d = at.keep(madd(d, rstd, wide<T>(s + j)));
                        one[0] += g.a, one[1] = madd(g.a, d.a, one[1]);
                        two[0] += g.b, two[1] = madd(g.b, d.b, two[1]);
                    });
                piece.row_a[r1] = sums[0][0];
                piece.row_b[r1] = sums[1][0];
            }
        } else if (t) {
            auto column = [&](int64_t j) NK_LAMBDA {
                return Coefficients<Reg<T>>{wide<T>(hi + j), wide<T>(p + j), wide<T>(q + j), wide<T>(t + j)};
            };
            write_rows<T, N>(walk, dx, J, column, [&](auto at, int k, int64_t j, auto c) NK_LAMBDA {
                return madd(at.load(x + k * J + j) - c.hi, c.t, madd(at.load(dy + k * J + j), c.p, c.q));
            });
        } else {
            write_rows<T, N>(walk, dx, J, [&](int64_t j) NK_LAMBDA { return wide<T>(p + j); },
                             [&](auto at, int k, int64_t j, auto pj) NK_LAMBDA { return at.load(dy + k * J + j) * pj; });
        }
        clear_masked(job, piece, row, N, dx);
    });
}
