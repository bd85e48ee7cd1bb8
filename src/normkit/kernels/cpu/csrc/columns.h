// Passes over columns: channels are neighbours in memory (i == 1). Included inside namespace normkit::NK_ISA.

// The rows of the next block that the mask leaves, counted from the first of all k0; how many.
NK_INLINE int valid_rows(const Groups &job, const Piece &p, int64_t row, int64_t *rows) {
    const int64_t stop = least(p.last, row + BLOCK_ROWS), base = p.k0 * job.shape.r1;
    int m = 0;
    for (; row < stop; ++row)
        if (!job.mask || job.mask[base + row]) rows[m++] = base + row;
    return m;
}

// Columns two pairs at a time, whose sums over the rows of a block stay in registers: body(at, pairs, j).
template <class T, class Body> NK_INLINE void columns(const Walk<T> &walk, Body body) {
    int64_t j = 0;
    for (; j + 2 * PAIR<T> <= walk.full; j += 2 * PAIR<T>) body(Full<T>(), std::integral_constant<int, 2>(), j);
    for (; j < walk.full; j += PAIR<T>) body(Full<T>(), One(), j);
    if (walk.tail) body(Rim<T>{walk}, One(), walk.rim);
}

// mean and m2 of every channel of the piece, over its rows. In a block of rows
//
//   origin = mean of the first eight   how far it is off the mean is at most sqrt(7) times the spread
//   d      = x - origin,  mean = origin + mean(d),  m2 = sum(d²) - sum(d)² / m
template <class T> void column_moments(const Groups &job, const Piece &p) {
    using C = Compute<T>;
    constexpr int64_t N = PAIR<T>;
    const int64_t J = job.shape.channels();
    const Walk<T> walk(p.width);
    C s[TILE + N], q[TILE + N], o[TILE + N];
    double seen = 0;
    for (int64_t row = p.row; row < p.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, p, row, rows), few = int(least(m, 8));
        if (!m) continue;
        const T *x = static_cast<const T *>(job.x) + p.from;
        columns(walk, [&](auto at, auto pairs, int64_t j) NK_LAMBDA {
            constexpr int U = pairs.value;
            Two<Reg<T>> sum[U], square[U], origin[U];
            auto about_origin = [&](int begin, int end, auto add) NK_LAMBDA {
                for (int r = begin; r < end; ++r) {
                    const T *row = x + rows[r] * J + j;
#pragma GCC unroll 2
                    for (int u = 0; u < U; ++u) add(u, at.load(row + u * N) - origin[u]);
                }
            };
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) sum[u] = square[u] = both(C(0)), origin[u] = at.load(x + rows[0] * J + j + u * N);
            about_origin(1, few, [&](int u, Two<Reg<T>> d) NK_LAMBDA { sum[u] = sum[u] + d; });
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) origin[u] = origin[u] + sum[u] * both(C(1) / few), sum[u] = both(C(0));
            about_origin(0, m, [&](int u, Two<Reg<T>> d) NK_LAMBDA {
                sum[u] = sum[u] + d;
                square[u] = madd(d, d, square[u]);
            });
#pragma GCC unroll 2
            for (int u = 0; u < U; ++u) {
                put_wide<T>(s + j + u * N, sum[u]);
                put_wide<T>(q + j + u * N, square[u]);
                put_wide<T>(o + j + u * N, origin[u]);
            }
        });
        const double per = 1.0 / m;
        merge(p.width, p.a, p.b, seen, m, [&](auto at, int64_t j) NK_LAMBDA { return at(o + j) + at(s + j) * per; },
              [&](auto at, int64_t j) NK_LAMBDA { return at(q + j) - at(s + j) * at(s + j) * per; });
        seen += m;
    }
    *p.count = seen;
}

// Rows of the piece, eight at a time, so that what belongs to a column is loaded once for all of them:
// block(first row of all k0, how many).
template <class Block> NK_INLINE void row_blocks(const Groups &job, const Piece &p, Block block) {
    int64_t row = p.k0 * job.shape.r1 + p.row;
    const int64_t last = p.k0 * job.shape.r1 + p.last;
    for (; row + 8 <= last; row += 8) block(row, std::integral_constant<int, 8>());
    for (; row < last; ++row) block(row, One());
}
// value(at, row, j, what belongs to the columns) to N rows. The rim is read before anything is written.
template <class T, int N, class Column, class Value>
NK_INLINE void write_rows(const Walk<T> &walk, T *to, int64_t J, Column column, Value value) {
    const Rim<T> rim{walk};
    Two<Reg<T>> last[N];
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
    row_blocks(job, piece, [&](int64_t row, auto how_many) NK_LAMBDA {
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
    constexpr int64_t N = PAIR<T>;
    const int64_t J = job.shape.channels(), width = piece.width, base = piece.k0 * job.shape.r1;
    const Walk<T> walk(width);
    const T *x = static_cast<const T *>(job.x) + piece.from, *dy = static_cast<const T *>(job.dy) + piece.from;
    T *dx = static_cast<T *>(job.y) + piece.from;
    const C *hi = static_cast<const C *>(piece.hi), *p = static_cast<const C *>(piece.p);
    C a[TILE + N], b[TILE + N];
    for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, piece, row, rows);
        C w[BLOCK_ROWS];
        for (int r = 0; job.row_weight && r < m; ++r) w[r] = C(job.row_weight[rows[r] - base]);
        auto block = [&](auto weighted, auto writes) NK_LAMBDA {
            columns(walk, [&](auto at, auto pairs, int64_t j) NK_LAMBDA {
                constexpr int U = pairs.value;
                Two<Reg<T>> aj[U], bj[U], h[U], pj[U];
#pragma GCC unroll 2
                for (int u = 0; u < U; ++u) {
                    aj[u] = bj[u] = both(C(0));
                    h[u] = wide<T>(hi + j + u * N);
                    if (writes.value) pj[u] = wide<T>(p + j + u * N);
                }
                for (int r = 0; r < m; ++r) {
                    const int64_t from = rows[r] * J + j;
#pragma GCC unroll 2
                    for (int u = 0; u < U; ++u) {
                        Two<Reg<T>> g = at.load(dy + from + u * N);
                        if (writes.value) at.store(dx + from + u * N, g * pj[u]);
                        if (weighted.value) g = g * both(w[r]);
                        aj[u] = aj[u] + g;
                        bj[u] = madd(g, at.load(x + from + u * N) - h[u], bj[u]);
                    }
                }
#pragma GCC unroll 2
                for (int u = 0; u < U; ++u) put_wide<T>(a + j + u * N, aj[u]), put_wide<T>(b + j + u * N, bj[u]);
            });
        };
        if (piece.write) block(std::false_type(), std::true_type());
        else if (job.row_weight) block(std::true_type(), std::false_type());
        else block(std::false_type(), std::false_type());
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
    row_blocks(job, piece, [&](int64_t row, auto how_many) NK_LAMBDA {
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
