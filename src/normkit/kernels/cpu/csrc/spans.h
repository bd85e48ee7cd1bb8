// Passes over spans: `i` neighbouring numbers of one channel (i > 1). Included inside namespace normkit::NK_ISA.

// body(how many, first channel) for the spans of one row of a piece.
template <class Body> NK_INLINE void each_span(int64_t n, int64_t width, Body body) {
    int64_t c = 0;
    if (n <= SHORT)
        for (; c + 4 <= width; c += 4) body(Four(), c);
    for (; c < width; ++c) body(One(), c);
}
// Where the spans of a row of a piece begin; the next one is `i` further.
template <class T> NK_INLINE T *spans_at(T *base, const Groups &job, const Piece &p, int64_t row) {
    return base + ((p.k0 * job.shape.r1 + row) * job.shape.channels() + p.from) * job.shape.i;
}
NK_INLINE const bool *mask_at(const Groups &job, const Piece &p, int64_t row) {
    return job.mask ? job.mask + (p.k0 * job.shape.r1 + row) * job.shape.i : nullptr;
}
NK_INLINE int64_t power_of_two(int64_t n) { // the largest that is no larger
    return int64_t(1) << (63 - __builtin_clzll(n));
}

// Mean and m2 of S spans, of what the mask leaves:
//
//   shift = mean of the first few x   any number close to the mean will do; this one is x if all are equal
//   d     = x - shift                 exact, or nearly
//   rest  = mean(d)                   how far shift is off
//   m2    = sum(d²) - n rest²         cancels one bit at most, since rest is within the spread
//
// A span whose beginning is far from its mean takes a second look, from shift + rest.
template <class T, int S>
NK_INLINE void look_at_spans(const Walk<T> &walk, const T *x, const bool *mask, int64_t count, double *mean, double *m2) {
    using C = Compute<T>;
    const int64_t n = walk.n;
    const double per = 1.0 / count;
    C shift[S];
    if (mask) { // a power of two of them: the mean of equal numbers is exact
        const int64_t few = power_of_two(least(count, 8));
        for (int s = 0; s < S; ++s) {
            double sum = 0;
            for (int64_t j = 0, seen = 0; seen < few; ++j)
                if (mask[j]) sum += widen(x[s * n + j]), ++seen;
            shift[s] = C(sum / few);
        }
    } else {
        const int64_t few = walk.whole ? PAIR<T> : power_of_two(n);
        const C part = C(1) / C(few);
        Reg<T> first[4];
        double sums[4];
#pragma GCC unroll 4
        for (int s = 0; s < 4; ++s) {
            const T *own = x + (s < S ? s : 0) * n;
            const Two<Reg<T>> v = walk.whole ? load2(own) : load_short(own, few);
            first[s] = v.a * part + v.b * part;
        }
        if (S == 4) totals(first[0], first[1], first[2], first[3], sums);
        else sums[0] = total(first[0]);
        for (int s = 0; s < S; ++s) shift[s] = C(sums[s]);
    }
    for (int times = 0; times < 2; ++times) {
        double sums[2][S] = {};
        auto add = [&](Two<Reg<T>> d, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
            one[0] += d.a, one[1] = madd(d.a, d.a, one[1]);
            two[0] += d.b, two[1] = madd(d.b, d.b, two[1]);
        };
        if (mask)
            add_spans<T, S>(walk, sums, [&](auto at, int s, int64_t j, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
                add(at.keep(masked(at.load(x + s * n + j) - both(shift[s]), at.where(mask + j))), one, two);
            });
        else
            add_spans<T, S>(walk, sums, [&](auto at, int s, int64_t j, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
                add(at.keep(at.load(x + s * n + j) - both(shift[s])), one, two);
            });
        bool far = false;
        for (int s = 0; s < S; ++s) {
            const double rest = sums[0][s] * per, square = sums[1][s] - rest * sums[0][s];
            mean[s] = shift[s] + rest;
            m2[s] = square < 0 ? 0 : square;
            if (times == 0 && rest * rest * count > square) shift[s] = C(shift[s] + rest), far = true;
        }
        if (!far) return;
    }
}

// mean and m2 of every channel of the piece, over its rows
template <class T> void span_moments(const Groups &job, const Piece &p) {
    const Walk<T> walk(job.shape.i);
    double mean[TILE], m2[TILE], seen = 0;
    for (int64_t row = p.row; row < p.last; ++row) {
        const bool *mask = mask_at(job, p, row);
        int64_t count = walk.n;
        if (mask) {
            count = 0;
            for (int64_t j = 0; j < walk.n; ++j) count += mask[j];
            if (!count) continue;
        }
        const T *x = spans_at(static_cast<const T *>(job.x), job, p, row);
        each_span(walk.n, p.width, [&](auto how_many, int64_t c) NK_LAMBDA {
            look_at_spans<T, how_many.value>(walk, x + c * walk.n, mask, count, mean + c, m2 + c);
        });
        merge(p.width, p.a, p.b, seen, double(count), [&](auto at, int64_t j) NK_LAMBDA { return at(mean + j); },
              [&](auto at, int64_t j) NK_LAMBDA { return at(m2 + j); });
        seen += double(count);
    }
    *p.count = seen;
}

// y = (x - hi) * p + q
template <class T> void span_apply(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const Walk<T> walk(job.shape.i);
    const int64_t width = piece.width;
    const C *his = static_cast<const C *>(piece.hi), *ps = static_cast<const C *>(piece.p), *qs = static_cast<const C *>(piece.q);
    for (int64_t row = piece.row; row < piece.last; ++row) {
        const bool *mask = mask_at(job, piece, row);
        const T *x = spans_at(static_cast<const T *>(job.x), job, piece, row);
        T *y = spans_at(static_cast<T *>(job.y), job, piece, row);
        for (int64_t c = 0; c < width; ++c, x += walk.n, y += walk.n) {
            const auto hi = both(his[c]), p = both(ps[c]), q = both(qs[c]);
            if (mask) write(walk, y, [&](auto at, int64_t j) NK_LAMBDA { return masked(madd(at.load(x + j) - hi, p, q), at.where(mask + j)); });
            else write(walk, y, [&](auto at, int64_t j) NK_LAMBDA { return madd(at.load(x + j) - hi, p, q); });
        }
    }
}

// a = sum(dy), b = sum(dy * (x - hi)) of every channel of the piece, over its rows; and dx = dy * p, if asked for
template <class T> void span_sums(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const Walk<T> walk(job.shape.i);
    const C *hi = static_cast<const C *>(piece.hi), *scale = static_cast<const C *>(piece.p);
    double *sum_a = piece.a, *sum_b = piece.b;
    for (int64_t row = piece.row; row < piece.last; ++row) {
        const bool *mask = mask_at(job, piece, row);
        const bool fresh = row == piece.row;
        const T *xs = spans_at(static_cast<const T *>(job.x), job, piece, row), *dys = spans_at(static_cast<const T *>(job.dy), job, piece, row);
        T *dxs = spans_at(static_cast<T *>(job.y), job, piece, row);
        auto run = [&](auto masks, auto writes) NK_LAMBDA {
            each_span(walk.n, piece.width, [&](auto how_many, int64_t c) NK_LAMBDA {
                constexpr int S = how_many.value;
                double sums[2][S] = {};
                add_spans<T, S>(walk, sums, [&](auto at, int s, int64_t j, Reg<T> *one, Reg<T> *two) NK_LAMBDA {
                    const int64_t from = (c + s) * walk.n + j;
                    Two<Reg<T>> d = at.load(xs + from) - both(hi[c + s]), g = at.load(dys + from);
                    Two<Int<T>> valid;
                    if (masks.value) valid = at.where(mask + j), d = masked(d, valid);
                    if (writes.value) at.store(dxs + from, masks.value ? masked(g * both(scale[c + s]), valid) : g * both(scale[c + s]));
                    if (masks.value) g = masked(g, valid);
                    d = at.keep(d), g = at.keep(g);
                    one[0] += g.a, one[1] = madd(g.a, d.a, one[1]);
                    two[0] += g.b, two[1] = madd(g.b, d.b, two[1]);
                });
                in_lanes(S, [&](auto at, int64_t s) NK_LAMBDA {
                    at(sum_a + c + s, fresh ? at(sums[0] + s) : at(sum_a + c + s) + at(sums[0] + s));
                    at(sum_b + c + s, fresh ? at(sums[1] + s) : at(sum_b + c + s) + at(sums[1] + s));
                });
            });
        };
        if (mask && piece.write) run(std::true_type(), std::true_type());
        else if (mask) run(std::true_type(), std::false_type());
        else if (piece.write) run(std::false_type(), std::true_type());
        else run(std::false_type(), std::false_type());
    }
}

// dx = dy * p + q + (x - hi) * t; without t, dx = dy * p
template <class T> void span_gradient(const Groups &job, const Piece &piece) {
    using C = Compute<T>;
    const Walk<T> walk(job.shape.i);
    const int64_t width = piece.width;
    const C *his = static_cast<const C *>(piece.hi), *ps = static_cast<const C *>(piece.p), *qs = static_cast<const C *>(piece.q),
            *ts = static_cast<const C *>(piece.t);
    for (int64_t row = piece.row; row < piece.last; ++row) {
        const bool *mask = mask_at(job, piece, row);
        const T *x = spans_at(static_cast<const T *>(job.x), job, piece, row), *dy = spans_at(static_cast<const T *>(job.dy), job, piece, row);
        T *dx = spans_at(static_cast<T *>(job.y), job, piece, row);
        for (int64_t c = 0; c < width; ++c, x += walk.n, dy += walk.n, dx += walk.n) {
            const auto p = both(ps[c]);
            auto finish = [&](auto value) NK_LAMBDA {
                if (mask) write(walk, dx, [&](auto at, int64_t j) NK_LAMBDA { return masked(value(at, j), at.where(mask + j)); });
                else write(walk, dx, value);
            };
            if (!ts) {
                finish([&](auto at, int64_t j) NK_LAMBDA { return at.load(dy + j) * p; });
                continue;
            }
            const auto hi = both(his[c]), q = both(qs[c]), t = both(ts[c]);
            finish([&](auto at, int64_t j) NK_LAMBDA { return madd(at.load(x + j) - hi, t, madd(at.load(dy + j), p, q)); });
        }
    }
}
