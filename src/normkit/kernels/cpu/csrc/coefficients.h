// What the passes over groups apply to each channel, from the statistics of its group and the sums of the channel.
// Included inside namespace normkit::NK_ISA.

NK_INLINE vd root(vd v) {
#if NK_BYTES == 64
    return (vd)_mm512_sqrt_pd((__m512d)v);
#elif NK_BYTES == 32
    return (vd)_mm256_sqrt_pd((__m256d)v);
#else
    return vd{__builtin_sqrt(v[0]), __builtin_sqrt(v[1])};
#endif
}
NK_INLINE double root(double v) { return __builtin_sqrt(v); }

// v where the number beside it is not 0, else 0: 0 * inf must not spoil what is certain.
NK_INLINE vd unless_zero(vd beside, vd v) { return (vd)((vi64)v & (beside != 0)); }
NK_INLINE double unless_zero(double beside, double v) { return beside != 0 ? v : 0; }
// The same NaN for all of them: see store2.
NK_INLINE vd plain(vd v) {
    const vi64 nan = v != v;
    return (vd)(((vi64)v & ~nan) | (nan & 0x7ff8000000000000));
}
NK_INLINE double plain(double v) { return v == v ? v : __builtin_nan(""); }

// body(at, channel, mean, rstd, group) for every channel: in vectors over the channels of a group, or over groups that
// have one channel each. `close(group)` after each group of several.
template <class Body, class Close> NK_INLINE void each_channel(const Channels &c, Body body, Close close) {
    if (c.r3 == 1) {
        in_lanes(c.groups, [&](auto at, int64_t j) NK_LAMBDA { body(at, j, at(c.mean + j), at(c.rstd + j)); });
        return;
    }
    for (int64_t g = 0; g < c.groups; ++g) {
        in_lanes(c.r3, [&](auto at, int64_t k) NK_LAMBDA { body(at, g * c.r3 + k, at.all(c.mean[g]), at.all(c.rstd[g])); });
        close(g);
    }
}

// hi = mean, rounded;  p = rstd * weight;  q = bias - (mean - hi) * p, so that y = (x - hi) * p + q
// A backward needs hi and p alone, and s = -(mean - hi) * rstd.
template <class T> void channel_scales(const Channels &c) {
    using C = Compute<T>;
    C *hi = static_cast<C *>(c.hi), *p = static_cast<C *>(c.p), *q = static_cast<C *>(c.q), *s = static_cast<C *>(c.s);
    in_lanes(c.groups, [&](auto at, int64_t g) NK_LAMBDA {
        at(c.rstd + g, unless_zero(at(c.count + g), 1 / root(at(c.var + g) + c.eps)));
    });
    each_channel(c, [&](auto at, int64_t k, auto mean, auto rstd) NK_LAMBDA {
        const auto scale = rstd * at(c.weight + k);
        at(hi + k, plain(mean));
        at(p + k, plain(scale));
        const auto lo = mean - at(hi + k);
        if (q) at(q + k, plain(at(c.bias + k) - unless_zero(lo, lo * scale)));
        if (s) at(s + k, plain(-unless_zero(lo, lo * rstd)));
    }, [](int64_t) {});
}

// With g = dy * weight and d = x - mean, a = sum(dy), b = sum(dy * (x - hi)) of each channel, n = count:
//
//   dbias = a,  dweight = rstd * sum(dy * d)
//   dx    = rstd * (g - sum(g) / n - d * rstd² * sum(g * d) / n) = dy * p + q + (x - hi) * t
template <class T> void channel_slopes(const Channels &c) {
    using C = Compute<T>;
    C *hi = static_cast<C *>(c.hi), *q = static_cast<C *>(c.q), *t = static_cast<C *>(c.t);
    struct Sum {
        vd lanes;
        double rest;
        NK_INLINE void add(vd v) { lanes += v; }
        NK_INLINE void add(double v) { rest += v; }
    };
    Sum g = {vd{}, 0}, gd = {vd{}, 0};
    auto slope = [&](auto at, int64_t k, auto mean, auto rstd, auto sum_g, auto sum_gd, auto count, auto write) NK_LAMBDA {
        const auto share = -rstd / count, steep = share * rstd * rstd * sum_gd, lo = mean - at(hi + k);
        write(plain((c.center ? share * sum_g : at.all(0)) - lo * steep), plain(steep));
    };
    each_channel(c, [&](auto at, int64_t k, auto mean, auto rstd) NK_LAMBDA {
        const auto a = at(c.a + k), b = at(c.b + k) - (mean - at(hi + k)) * a, w = at(c.weight + k);
        if (c.dweight) at(c.dweight + k, c.fresh ? rstd * b : at(c.dweight + k) + rstd * b);
        if (c.dbias) at(c.dbias + k, c.fresh ? a : at(c.dbias + k) + a);
        if (!c.t) return;
        if (c.r3 > 1) g.add(w * a), gd.add(w * b);
        else slope(at, k, mean, rstd, w * a, w * b, at(c.count + k), [&](auto level, auto steep) NK_LAMBDA { at(q + k, level), at(t + k, steep); });
    }, [&](int64_t group) NK_LAMBDA {
        if (!c.t) return;
        const double sum_g = total(g.lanes) + g.rest, sum_gd = total(gd.lanes) + gd.rest;
        const int64_t from = group * c.r3;
        slope(Lane(), from, c.mean[group], c.rstd[group], sum_g, sum_gd, c.count[group], [&](double level, double steep) NK_LAMBDA {
            for (int64_t k = from; k < from + c.r3; ++k) q[k] = C(level), t[k] = C(steep);
        });
        g = {vd{}, 0}, gd = {vd{}, 0};
    });
}

// The largest magnitude of n neighbours; NaN if there is one.
template <class T> double peak(const void *data, int64_t n) {
    using I = Int<T>;
    const T *x = static_cast<const T *>(data);
    const Walk<T> walk(n);
    I most = {}; // magnitudes are in the order of their bits, and NaN is above them all
    auto look = [&](Two<Reg<T>> v) NK_LAMBDA {
        const I sign = (I)all(Compute<T>(-0.0)), a = (I)v.a & ~sign, b = (I)v.b & ~sign, larger = a > b ? a : b;
        most = most > larger ? most : larger;
    };
    for (int64_t j = 0; j < walk.full; j += PAIR<T>) look(load2(x + j));
    if (walk.tail) look(Rim<T>{walk}.load(x + walk.rim));
    I best = most;
    for (int k = 1; k < PAIR<T> / 2; ++k) best[0] = best[0] > most[k] ? best[0] : most[k];
    return double(((Reg<T>)best)[0]);
}
