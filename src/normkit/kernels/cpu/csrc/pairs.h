// Two registers at a time, for the passes over groups. Included inside namespace normkit::NK_ISA.
//
// A bfloat16 is the upper half of a float32: of 2 W neighbours, one shift gives those at even places and one mask
// those at odd ones. Numbers of a wider dtype that meet them (coefficients of columns) are put in that order.

template <class T> using Compute = typename Of<T>::C;
template <class T> using Reg = typename Vec<Compute<T>>::V;
template <class T> using Int = typename Vec<Compute<T>>::I;
template <class T> constexpr int64_t PAIR = 2 * LANES<Compute<T>>;
template <class T> constexpr bool ODD_EVEN = std::is_same<T, bf16>::value;

using One = std::integral_constant<int, 1>;
using Four = std::integral_constant<int, 4>;

template <class V> struct Two {
    V a, b;
    friend NK_INLINE Two operator+(Two x, Two y) { return {x.a + y.a, x.b + y.b}; }
    friend NK_INLINE Two operator-(Two x, Two y) { return {x.a - y.a, x.b - y.b}; }
    friend NK_INLINE Two operator*(Two x, Two y) { return {x.a * y.a, x.b * y.b}; }
};
template <class V> NK_INLINE Two<V> madd(Two<V> x, Two<V> y, Two<V> z) { return {madd(x.a, y.a, z.a), madd(x.b, y.b, z.b)}; }
template <class V, class I> NK_INLINE Two<V> masked(Two<V> x, Two<I> m) { return {(V)((I)x.a & m.a), (V)((I)x.b & m.b)}; }
template <class C> NK_INLINE auto both(C v) { return Two<decltype(all(v))>{all(v), all(v)}; }

template <class T> NK_INLINE Two<Reg<T>> load2(const T *p) { return {load(p), load(p + PAIR<T> / 2)}; }
NK_INLINE Two<vf> load2(const bf16 *p) {
    const vu32 u = raw<vu32>(p);
    return {(vf)(u << 16), (vf)(u & 0xffff0000u)};
}
template <class T> NK_INLINE void store2(T *p, Two<Reg<T>> v) {
    store(p, v.a);
    store(p + PAIR<T> / 2, v.b);
}
// To nearest, ties to even. No test for NaN: one that comes of a bfloat16, or of a coefficient (see `put`), has no
// low bits that could carry over.
NK_INLINE void store2(bf16 *p, Two<vf> v) {
    vu32 a = (vu32)v.a, b = (vu32)v.b;
    a = (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
    b = (b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u;
    a |= b;
    __builtin_memcpy(p, &a, sizeof a);
}

NK_INLINE Two<vf> split(vf x, vf y) { // even places, odd places
#if NK_BYTES == 64
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return {(vf)_mm512_permutex2var_ps((__m512)x, even, (__m512)y),
            (vf)_mm512_permutex2var_ps((__m512)x, _mm512_add_epi32(even, _mm512_set1_epi32(1)), (__m512)y)};
#elif NK_BYTES == 32
    const __m256d a = (__m256d)_mm256_shuffle_ps((__m256)x, (__m256)y, 0x88), b = (__m256d)_mm256_shuffle_ps((__m256)x, (__m256)y, 0xdd);
    return {(vf)_mm256_permute4x64_pd(a, 0xd8), (vf)_mm256_permute4x64_pd(b, 0xd8)};
#else
    return {vf{x[0], x[2], y[0], y[2]}, vf{x[1], x[3], y[1], y[3]}};
#endif
}
NK_INLINE Two<vf> joined(Two<vf> v) { // the way back
#if NK_BYTES == 64
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return {(vf)_mm512_permutex2var_ps((__m512)v.a, low, (__m512)v.b),
            (vf)_mm512_permutex2var_ps((__m512)v.a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), (__m512)v.b)};
#elif NK_BYTES == 32
    const __m256 low = _mm256_unpacklo_ps((__m256)v.a, (__m256)v.b), high = _mm256_unpackhi_ps((__m256)v.a, (__m256)v.b);
    return {(vf)_mm256_permute2f128_ps(low, high, 0x20), (vf)_mm256_permute2f128_ps(low, high, 0x31)};
#else
    return {vf{v.a[0], v.b[0], v.a[1], v.b[1]}, vf{v.a[2], v.b[2], v.a[3], v.b[3]}};
#endif
}
// Numbers of the compute dtype, in the order of those of T.
template <class T> NK_INLINE Two<Reg<T>> wide(const Compute<T> *p) {
    const Two<Reg<T>> v = load2(p);
    if constexpr (ODD_EVEN<T>) return split(v.a, v.b);
    else return v;
}
template <class T> NK_INLINE void put_wide(Compute<T> *p, Two<Reg<T>> v) {
    if constexpr (ODD_EVEN<T>) v = joined(v);
    store2(p, v);
}
template <class T> NK_INLINE Two<Int<T>> where2(const bool *p) {
    constexpr int64_t W = PAIR<T> / 2;
    if constexpr (ODD_EVEN<T>) {
        const vi32 pairs = (vi32)__builtin_convertvector(raw<vu16>(p), vu32);
        return {(pairs & 0xff) != 0, (pairs >> 8) != 0};
    } else {
        return {Whole().where<Compute<T>>(p), Whole().where<Compute<T>>(p + W)};
    }
}
template <class T> __attribute__((noinline)) Two<Reg<T>> load_short(const T *p, int64_t n) {
    T padded[PAIR<T>];
    __builtin_memset(padded, 0, sizeof padded);
    __builtin_memcpy(padded, p, n * sizeof(T));
    return load2(padded);
}
template <class T> __attribute__((noinline)) void store_short(T *p, Two<Reg<T>> v, int64_t n) {
    T padded[PAIR<T>];
    store2(padded, v);
    __builtin_memcpy(p, padded, n * sizeof(T));
}

// How to walk over n neighbours: pairs of registers, and a rim of what is left. Where there is room the rim is the
// last whole pair, whose lanes that were done before are kept out of sums; else it goes through a padded copy.
// What is in the compute dtype has room for a pair behind its end.
template <class T> struct Walk {
    int64_t n, full, rim; // [0, full) in pairs, and a pair at `rim`
    bool tail, whole;
    Two<Int<T>> own;
    NK_INLINE explicit Walk(int64_t count) : n(count), full(count / PAIR<T> * PAIR<T>), tail(full < count), whole(full > 0) {
        constexpr int64_t W = PAIR<T> / 2;
        rim = whole ? n - PAIR<T> : 0;
        for (int64_t k = 0; k < W; ++k) {
            const int64_t a = ODD_EVEN<T> ? 2 * k : k, b = ODD_EVEN<T> ? 2 * k + 1 : W + k;
            own.a[k] = -(whole ? rim + a >= full : a < n);
            own.b[k] = -(whole ? rim + b >= full : b < n);
        }
    }
};
template <class T> struct Full {
    NK_INLINE Two<Reg<T>> load(const T *p) const { return load2(p); }
    NK_INLINE void store(T *p, Two<Reg<T>> v) const { store2(p, v); }
    NK_INLINE Two<Reg<T>> keep(Two<Reg<T>> v) const { return v; }
    NK_INLINE Two<Int<T>> where(const bool *p) const { return where2<T>(p); }
    NK_INLINE int64_t place(int64_t j) const { return j; } // see InOrder
};
template <class T> struct Rim {
    const Walk<T> &walk;
    NK_INLINE int64_t place(int64_t) const { return walk.full; }
    NK_INLINE Two<Reg<T>> load(const T *p) const { return walk.whole ? load2(p) : load_short(p, walk.n); }
    NK_INLINE void store(T *p, Two<Reg<T>> v) const {
        if (walk.whole) store2(p, v);
        else store_short(p, v, walk.n);
    }
    NK_INLINE Two<Reg<T>> keep(Two<Reg<T>> v) const { return masked(v, walk.own); }
    NK_INLINE Two<Int<T>> where(const bool *p) const {
        if (walk.whole) return where2<T>(p);
        bool padded[PAIR<T>];
        __builtin_memset(padded, 0, sizeof padded);
        __builtin_memcpy(padded, p, walk.n);
        return where2<T>(padded);
    }
};

// to[j] = value(at, j). The rim is read before what it shares with the last pair is written: `to` may be what is read.
// What comes next is asked for: no machine foresees where a store leaves a page.
template <class T, class Value> NK_INLINE void write(const Walk<T> &walk, T *to, Value value) {
    constexpr int64_t FAR = 512;
    const Rim<T> rim{walk};
    int64_t j = 0;
    for (; j < walk.full - PAIR<T>; j += PAIR<T>) {
        __builtin_prefetch(to + j + FAR, 1);
        store2(to + j, value(Full<T>(), j));
    }
    Two<Reg<T>> last = {};
    if (walk.tail) last = value(rim, walk.rim);
    if (walk.whole) store2(to + j, value(Full<T>(), j));
    if (walk.tail) rim.store(to + walk.rim, last);
}

// The sums of all lanes of four registers.
NK_INLINE void totals(vd a, vd b, vd c, vd d, double *to) { to[0] = total(a), to[1] = total(b), to[2] = total(c), to[3] = total(d); }
NK_INLINE void totals(vf a, vf b, vf c, vf d, double *to) {
#if NK_BYTES == 16
    to[0] = total(a), to[1] = total(b), to[2] = total(c), to[3] = total(d);
#else
#if NK_BYTES == 64
    auto half = [](vf v) NK_LAMBDA { return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1)); };
#else
    auto half = [](vf v) NK_LAMBDA { return (__m256)v; };
#endif
    const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(sums)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(sums, 1));
    _mm256_storeu_pd(to, _mm256_add_pd(low, high));
#endif
}

constexpr int64_t SHORT = 512; // spans up to here are done four at a time

// K sums of each of S spans: body(at, span, j, sums, sums too). One span after the other, as they lie in memory; S is
// 4 for short ones, so that the lanes of four registers are added up at once. Registers add up 64 numbers a lane, from
// there on in double.
template <class T, int S, int K, class Body> NK_INLINE void add_spans(const Walk<T> &walk, double (&sums)[K][S], Body body) {
    static_assert(S == 1 || S == 4, "");
    constexpr int64_t N = PAIR<T>, block = 128 * N;
    for (int64_t from = 0; from < walk.n; from += block) {
        const int64_t to = S == 4 ? walk.full : least(from + block, walk.full);
        Reg<T> done[S][K];
        for (int s = 0; s < S; ++s) {
            Reg<T> acc[4][K];
#pragma GCC unroll 4
            for (int a = 0; a < 4; ++a)
#pragma GCC unroll 2
                for (int k = 0; k < K; ++k) acc[a][k] = Reg<T>{};
            int64_t j = from;
            for (; j + 2 * N <= to; j += 2 * N) {
                body(Full<T>(), s, j, acc[0], acc[1]);
                body(Full<T>(), s, j + N, acc[2], acc[3]);
            }
            if (j < to) body(Full<T>(), s, j, acc[0], acc[1]);
            if (walk.tail && (S == 4 || from + block >= walk.n)) body(Rim<T>{walk}, s, walk.rim, acc[2], acc[3]);
#pragma GCC unroll 2
            for (int k = 0; k < K; ++k) done[s][k] = (acc[0][k] + acc[1][k]) + (acc[2][k] + acc[3][k]);
        }
#pragma GCC unroll 2
        for (int k = 0; k < K; ++k) {
            if constexpr (S == 4) {
                totals(done[0][k], done[1][k], done[2][k], done[3][k], sums[k]);
            } else {
                const double sum = total(done[0][k]);
                sums[k][0] = from == 0 ? sum : sums[k][0] + sum;
            }
        }
        if (S == 4) return;
    }
}

// body(at, j) for n numbers in double: at(p) reads, at(p, v) writes, in any dtype.
struct Lanes {
    NK_INLINE vd all(double v) const { return NK_ISA::all(v); }
    template <class C> NK_INLINE vd operator()(const C *p) const {
        typedef C part __attribute__((vector_size(LANES<double> * sizeof(C))));
        return __builtin_convertvector(raw<part>(p), vd);
    }
    template <class C> NK_INLINE void operator()(C *p, vd v) const {
        typedef C part __attribute__((vector_size(LANES<double> * sizeof(C))));
        const part narrow = __builtin_convertvector(v, part);
        __builtin_memcpy(p, &narrow, sizeof narrow);
    }
};
struct Lane {
    NK_INLINE double all(double v) const { return v; }
    template <class C> NK_INLINE double operator()(const C *p) const { return *p; }
    template <class C> NK_INLINE void operator()(C *p, double v) const { *p = C(v); }
};
template <class Body> NK_INLINE void in_lanes(int64_t n, Body body) {
    int64_t j = 0;
    for (; j + LANES<double> <= n; j += LANES<double>) body(Lanes(), j);
    for (; j < n; ++j) body(Lane(), j);
}

// Mean and m2 = sum of (x - mean)² of n columns over `seen` numbers each, and over `m` more of them: Chan, Golub &
// LeVeque 1979.
template <class Mean, class M2> NK_INLINE void merge(int64_t n, double *mean, double *m2, double seen, double m, Mean more, M2 more_m2) {
    if (seen == 0) {
        in_lanes(n, [&](auto at, int64_t j) NK_LAMBDA { at(mean + j, more(at, j)), at(m2 + j, more_m2(at, j)); });
        return;
    }
    const double share = m / (seen + m), weight = seen * share;
    in_lanes(n, [&](auto at, int64_t j) NK_LAMBDA {
        const auto delta = more(at, j) - at(mean + j);
        at(mean + j, at(mean + j) + delta * share);
        at(m2 + j, at(m2 + j) + more_m2(at, j) + delta * delta * weight);
    });
}

void merge_moments(int64_t n, double *mean, double *m2, double seen, double m, const double *more, const double *more_m2) {
    merge(n, mean, m2, seen, m, [&](auto at, int64_t j) NK_LAMBDA { return at(more + j); },
          [&](auto at, int64_t j) NK_LAMBDA { return at(more_m2 + j); });
}
