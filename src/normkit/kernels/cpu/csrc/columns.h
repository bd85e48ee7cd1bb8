// Passes over columns: channels are neighbours in memory (i == 1). Included inside namespace normkit::NK_ISA.

// The rows of the next block that the mask leaves, counted from the first of all k0; how many.
NK_INLINE int valid_rows(const Groups &job, const Piece &p, int64_t row, int64_t *rows) {
    const int64_t stop = least(p.last, row + BLOCK_ROWS), base = p.k0 * job.shape.r1;
    int m = 0;
    for (; row < stop; ++row)
        if (!job.mask || job.mask[base + row]) rows[m++] = base + row;
    return m;
}

// body(at, column)
template <class T, class Body> NK_INLINE void columns(const Walk<T> &walk, Body body) {
    for (int64_t j = 0; j < walk.full; j += PAIR<T>) body(Full<T>(), j);
    if (walk.tail) body(Rim<T>{walk}, walk.rim);
}
// One number of each column, in the order of T's registers; the rim has a place of its own.
template <class T> struct InOrder {
    Compute<T> values[TILE + PAIR<T>];
    InOrder() = default;
    NK_INLINE InOrder(const Walk<T> &walk, const void *from) { take(walk, from); }
    NK_INLINE void take(const Walk<T> &walk, const void *from) {
        const Compute<T> *own = static_cast<const Compute<T> *>(from);
        columns(walk, [&](auto at, int64_t j) NK_LAMBDA { put(at, j, wide<T>(own + j)); });
    }
    template <class At> NK_INLINE Two<Reg<T>> operator()(At at, int64_t j) const { return load2(values + at.place(j)); }
    template <class At> NK_INLINE void put(At at, int64_t j, Two<Reg<T>> v) { store2(values + at.place(j), v); }
    NK_INLINE const Compute<T> *natural(const Walk<T> &walk, Compute<T> *room) const {
        if (!ODD_EVEN<T> && !walk.tail) return values;
        columns(walk, [&](auto at, int64_t j) NK_LAMBDA { put_wide<T>(room + j, (*this)(at, j)); });
        return room;
    }
};
// A few rows at a time, so that sums are loaded and stored once for all of them: body(first, how many, how far ahead to
// ask for the next ones, which no machine foresees where there are several).
template <int N, class Body> NK_INLINE void few_at_a_time(int64_t begin, int64_t end, int64_t J, Body body) {
    constexpr int64_t FAR = 512;
    int64_t r = begin;
    for (; r + N <= end; r += N) body(r, std::integral_constant<int, N>(), N * J > FAR ? N * J : FAR);
    for (; r < end; ++r) body(r, One(), FAR);
}

// mean and m2 of every channel of the piece, over its rows. In a block of rows
//
//   origin = mean of eight rows   how far it is off the mean of all is at most sqrt(7) times the spread
//   d      = x - origin,  mean = origin + mean(d),  m2 = sum(d²) - sum(d)² / m
template <class T> void column_moments(const Groups &job, const Piece &p) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels();
    const Walk<T> walk(p.width);
    InOrder<T> sum, square, origin;
    C room[3][TILE + PAIR<T>];
    double seen = 0;
    for (int64_t row = p.row; row < p.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, p, row, rows), few = int(least(m, 8));
        if (!m) continue;
        const T *x = static_cast<const T *>(job.x) + p.from;
        const T *some[8];
        for (int r = 0; r < few; ++r) some[r] = x + rows[r * m / few] * J;
        columns(walk, [&](auto at, int64_t j) NK_LAMBDA {
            const Two<Reg<T>> first = at.load(some[0] + j);
            Two<Reg<T>> off = both(C(0));
            for (int r = 1; r < few; ++r) off = off + (at.load(some[r] + j) - first);
            origin.put(at, j, madd(off, both(C(1) / few), first));
        });
        few_at_a_time<8>(0, m, J, [&](int64_t r, auto how_many, int64_t next) NK_LAMBDA {
            constexpr int N = how_many.value;
            const T *from[N];
            for (int k = 0; k < N; ++k) from[k] = x + rows[r + k] * J;
            columns(walk, [&](auto at, int64_t j) NK_LAMBDA {
                const Two<Reg<T>> shift = origin(at, j);
                Two<Reg<T>> a = both(C(0)), b = a;
                if (r > 0) a = sum(at, j), b = square(at, j);
#pragma GCC unroll 8
                for (int k = 0; k < N; ++k) {
                    __builtin_prefetch(from[k] + next + j);
                    const Two<Reg<T>> d = at.load(from[k] + j) - shift;
                    a = a + d;
                    b = madd(d, d, b);
                }
                sum.put(at, j, a), square.put(at, j, b);
            });
        });
        const C *s = sum.natural(walk, room[0]), *q = square.natural(walk, room[1]), *o = origin.natural(walk, room[2]);
        const double per = 1.0 / m;
        merge(p.width, p.a, p.b, seen, m, [&](auto at, int64_t j) NK_LAMBDA { return at(o + j) + at(s + j) * per; },
              [&](auto at, int64_t j) NK_LAMBDA { return at(q + j) - at(s + j) * at(s + j) * per; });
        seen += m;
    }
    *p.count = seen;
}

template <class T> NK_INLINE void clear_masked(const Groups &job, const Piece &p, int64_t row, int64_t rows, T *y) {
    for (int64_t k = 0; job.mask && k < rows; ++k)
        if (!job.mask[row + k]) __builtin_memset(y + k * job.shape.channels(), 0, p.width * sizeof(T));
}

// y = (x - hi) * p + q; with the weight along r1, p is rstd, and weight and bias are applied row by row.
template <class T> void column_apply(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels(), base = piece.k0 * job.shape.r1;
    const Walk<T> walk(piece.width);
    const InOrder<T> hi(walk, piece.hi), p(walk, piece.p), q(walk, piece.q);
    for (int64_t row = base + piece.row; row < base + piece.last; ++row) {
        const T *x = static_cast<const T *>(job.x) + row * J + piece.from;
        T *y = static_cast<T *>(job.y) + row * J + piece.from;
        auto scaled = [&](auto at, int64_t j) NK_LAMBDA { return madd(at.load(x + j) - hi(at, j), p(at, j), q(at, j)); };
        if (job.row_weight) {
            const auto w = both(C(job.row_weight[row - base])), b = both(C(job.row_bias[row - base]));
            write(walk, y, [&](auto at, int64_t j) NK_LAMBDA { return madd(scaled(at, j), w, b); });
        } else {
            write(walk, y, scaled);
        }
        clear_masked(job, piece, row, 1, y);
    }
}

// a = sum(g), b = sum(g * (x - hi)) of every channel of the piece, over its rows, where g is dy, or dy * weight if
// that lies along r1; and dx = dy * p, if asked for
template <class T> void column_sums(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const int64_t J = job.shape.channels(), width = piece.width, base = piece.k0 * job.shape.r1;
    const Walk<T> walk(width);
    const T *x = static_cast<const T *>(job.x) + piece.from, *dy = static_cast<const T *>(job.dy) + piece.from;
    T *dx = static_cast<T *>(job.y) + piece.from;
    const InOrder<T> hi(walk, piece.hi), p(walk, piece.p);
    InOrder<T> sum_a, sum_b;
    C room[2][TILE + PAIR<T>];
    for (int64_t row = piece.row; row < piece.last; row += BLOCK_ROWS) {
        int64_t rows[BLOCK_ROWS];
        const int m = valid_rows(job, piece, row, rows);
        auto block = [&](auto weighted, auto writes) NK_LAMBDA {
            few_at_a_time<ODD_EVEN<T> ? 4 : 1>(0, m, J, [&](int64_t r, auto how_many, int64_t next) NK_LAMBDA {
                constexpr int N = how_many.value;
                int64_t from[N];
                Two<Reg<T>> w[N];
                for (int k = 0; k < N; ++k) {
                    from[k] = rows[r + k] * J;
                    if (weighted.value) w[k] = both(C(job.row_weight[rows[r + k] - base]));
                }
                columns(walk, [&](auto at, int64_t j) NK_LAMBDA {
                    const Two<Reg<T>> h = hi(at, j);
                    Two<Reg<T>> aj = both(C(0)), bj = aj;
                    if (r > 0) aj = sum_a(at, j), bj = sum_b(at, j);
#pragma GCC unroll 4
                    for (int k = 0; k < N; ++k) {
                        __builtin_prefetch(dy + from[k] + next + j), __builtin_prefetch(x + from[k] + next + j);
                        Two<Reg<T>> g = at.load(dy + from[k] + j);
                        if (writes.value) at.store(dx + from[k] + j, g * p(at, j));
                        if (weighted.value) g = g * w[k];
                        aj = aj + g;
                        bj = madd(g, at.load(x + from[k] + j) - h, bj);
                    }
                    sum_a.put(at, j, aj), sum_b.put(at, j, bj);
                });
            });
        };
        if (piece.write) block(std::false_type(), std::true_type());
        else if (job.row_weight) block(std::true_type(), std::false_type());
        else block(std::false_type(), std::false_type());
        if (!m) columns(walk, [&](auto at, int64_t j) NK_LAMBDA { sum_a.put(at, j, both(C(0))), sum_b.put(at, j, both(C(0))); });
        const C *a = sum_a.natural(walk, room[0]), *b = sum_b.natural(walk, room[1]);
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
    const bool full = piece.t, weighted = job.row_weight;
    const InOrder<T> p(walk, piece.p);
    InOrder<T> hi, q, t, s;
    if (full || weighted) hi.take(walk, piece.hi);
    if (full) q.take(walk, piece.q), t.take(walk, piece.t);
    if (weighted) s.take(walk, piece.s);
    for (int64_t row = base + piece.row; row < base + piece.last; ++row) {
        const T *x = static_cast<const T *>(job.x) + row * J + piece.from, *dy = static_cast<const T *>(job.dy) + row * J + piece.from;
        T *dx = static_cast<T *>(job.y) + row * J + piece.from;
        if (weighted) {
            const auto w = both(C(job.row_weight[row - base]));
            double sums[2][1] = {{0}, {0}};
            if (!job.mask || job.mask[row])
                add_spans<T, 1>(walk, sums, [&](auto at, int, int64_t j, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
                    Two<Reg<T>> g = at.load(dy + j), d = at.load(x + j) - hi(at, j);
                    const Two<Reg<T>> rstd = p(at, j);
                    at.store(dx + j, full ? madd(d, t(at, j), madd(g, rstd * w, q(at, j))) : g * (rstd * w));
                    g = at.keep(g), d = at.keep(madd(d, rstd, s(at, j)));
                    one[0] += g.a, one[1] = madd(g.a, d.a, one[1]);
                    two[0] += g.b, two[1] = madd(g.b, d.b, two[1]);
                });
            piece.row_a[row - base] = sums[0][0];
            piece.row_b[row - base] = sums[1][0];
        } else if (full) {
            write(walk, dx, [&](auto at, int64_t j) NK_LAMBDA {
                return madd(at.load(x + j) - hi(at, j), t(at, j), madd(at.load(dy + j), p(at, j), q(at, j)));
            });
        } else {
            write(walk, dx, [&](auto at, int64_t j) NK_LAMBDA { return at.load(dy + j) * p(at, j); });
        }
        clear_masked(job, piece, row, 1, dx);
    }
}
