// A vector of numbers in the compute dtype, for one instruction set: loads widen, stores round once.
// Included inside namespace normkit::NK_ISA, with NK_BYTES the width of a register: 64 means AVX-512, 32 AVX2 with FMA
// and F16C, 16 anything. (GCC reads a whole file before it obeys a target pragma: macros such as __FMA__ say nothing.)

#define NK_INLINE inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(NK_BYTES)));
typedef double vd __attribute__((vector_size(NK_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(NK_BYTES)));
typedef uint32_t vu32 __attribute__((vector_size(NK_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(NK_BYTES)));
typedef uint16_t vu16 __attribute__((vector_size(NK_BYTES / 2)));
typedef int8_t vb32 __attribute__((vector_size(NK_BYTES / 4)));
typedef int8_t vb64 __attribute__((vector_size(NK_BYTES / 8)));

template <class T> struct Of { using C = float; };
template <> struct Of<double> { using C = double; };
template <class C> struct Vec { using V = vf; using I = vi32; using B = vb32; };
template <> struct Vec<double> { using V = vd; using I = vi64; using B = vb64; };
template <class C> constexpr int64_t LANES = NK_BYTES / sizeof(C);

template <class V, class P> NK_INLINE V raw(const P *p) { V v; __builtin_memcpy(&v, p, sizeof v); return v; }

NK_INLINE vf load(const float *p) { return raw<vf>(p); }
NK_INLINE vd load(const double *p) { return raw<vd>(p); }
NK_INLINE vf load(const bf16 *p) {
#if NK_BYTES == 32 // GCC 12 widens by halves
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw<__m128i>(p)), 16);
#else
    return (vf)(__builtin_convertvector(raw<vu16>(p), vu32) << 16);
#endif
}
NK_INLINE void store(float *p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
NK_INLINE void store(double *p, vd v) { __builtin_memcpy(p, &v, sizeof v); }

NK_INLINE vu16 to_bf16(vf v) { // to nearest, ties to even; a NaN stays one
    vu32 u = (vu32)v;
    vu32 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vi32 nan = v != v;
    r = (vu32)(((vi32)r & ~nan) | (nan & 0x7fc0));
#if NK_BYTES == 32 // GCC 12 does not find this
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)r, (__m256i)r), 0xd8);
    return (vu16)_mm256_castsi256_si128(packed);
#else
    return __builtin_convertvector(r, vu16);
#endif
}
NK_INLINE void store(bf16 *p, vf v) { vu16 h = to_bf16(v); __builtin_memcpy(p, &h, sizeof h); }

// Two registers of bfloat16 at once, those at even places and those at odd ones: a shift or a mask each.
NK_INLINE vf load_even(const bf16 *p) { return (vf)(raw<vu32>(p) << 16); }
NK_INLINE vf load_odd(const bf16 *p) { return (vf)(raw<vu32>(p) & 0xffff0000u); }
NK_INLINE vu32 join(vf even, vf odd) { // neither holds NaN
    vu32 e = (vu32)even, o = (vu32)odd;
    e = (e + 0x7fffu + ((e >> 16) & 1u)) >> 16;
    o = (o + 0x7fffu + ((o >> 16) & 1u)) & 0xffff0000u;
    return e | o;
}
NK_INLINE void store(bf16 *p, vf even, vf odd) { vu32 u = join(even, odd); __builtin_memcpy(p, &u, sizeof u); }

#if NK_BYTES == 32
NK_INLINE vf load(const f16 *p) { return (vf)_mm256_cvtph_ps(raw<__m128i>(p)); }
NK_INLINE void store(f16 *p, vf v) {
    __m128i h = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(p, &h, sizeof h);
}
#elif NK_BYTES == 64
NK_INLINE vf load(const f16 *p) { return (vf)_mm512_cvtph_ps(raw<__m256i>(p)); }
NK_INLINE void store(f16 *p, vf v) {
    __m256i h = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(p, &h, sizeof h);
}
#else
NK_INLINE vf load(const f16 *p) {
    vf v = {};
    for (int64_t k = 0; k < LANES<float>; ++k) v[k] = widen(p[k]);
    return v;
}
NK_INLINE void store(f16 *p, vf v) {
    for (int64_t k = 0; k < LANES<float>; ++k) p[k] = narrow<f16>(v[k]);
}
#endif

// Past the cache, for outputs that do not fit into it; the address is aligned to the register.
NK_INLINE void stream(float *p, vf v) {
#if NK_BYTES == 64
    _mm512_stream_ps(p, (__m512)v);
#elif NK_BYTES == 32
    _mm256_stream_ps(p, (__m256)v);
#else
    store(p, v);
#endif
}
NK_INLINE void stream(bf16 *p, vf v) {
#if NK_BYTES == 64
    _mm256_stream_si256((__m256i *)p, (__m256i)to_bf16(v));
#elif NK_BYTES == 32
    _mm_stream_si128((__m128i *)p, (__m128i)to_bf16(v));
#else
    store(p, v);
#endif
}
NK_INLINE void stream(f16 *p, vf v) {
#if NK_BYTES == 64
    _mm256_stream_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif NK_BYTES == 32
    _mm_stream_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    store(p, v);
#endif
}
NK_INLINE void stream(double *p, vd v) {
#if NK_BYTES == 64
    _mm512_stream_pd(p, (__m512d)v);
#elif NK_BYTES == 32
    _mm256_stream_pd(p, (__m256d)v);
#else
    store(p, v);
#endif
}
NK_INLINE void stream(bf16 *p, vf even, vf odd) {
#if NK_BYTES == 64
    _mm512_stream_si512((__m512i *)p, (__m512i)join(even, odd));
#elif NK_BYTES == 32
    _mm256_stream_si256((__m256i *)p, (__m256i)join(even, odd));
#else
    store(p, even, odd);
#endif
}
NK_INLINE void streamed() { // other threads see it from here on
#if NK_BYTES > 16
    _mm_sfence();
#endif
}

// a * b + c in one rounding where the machine can. The compiler is told not to do so by itself (-ffp-contract=off):
// whether a product is rounded would depend on what surrounds it, and so would the result of a row.
NK_INLINE vf madd(vf a, vf b, vf c) {
#if NK_BYTES == 64
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif NK_BYTES == 32
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
NK_INLINE vd madd(vd a, vd b, vd c) {
#if NK_BYTES == 64
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif NK_BYTES == 32
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}
NK_INLINE vf all(float v) { return v - vf{}; } // in every lane
NK_INLINE vd all(double v) { return v - vd{}; }

template <class T, class V> NK_INLINE V through(V v) { // rounded to T and back
    T narrowed[LANES<typename Of<T>::C>];
    store(narrowed, v);
    return load(narrowed);
}
NK_INLINE vf rounded_to(Type type, vf v) {
    return type == BF16 ? through<bf16>(v) : type == F16 ? through<f16>(v) : v;
}
NK_INLINE vd rounded_to(Type, vd v) { return v; }

// The sum of all lanes, in double, as a tree: the upper half is added to the lower one.
NK_INLINE double total(vd v) {
#if NK_BYTES == 64
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256((__m512d)v), _mm512_extractf64x4_pd((__m512d)v, 1));
#elif NK_BYTES == 32
    __m256d four = (__m256d)v;
#endif
#if NK_BYTES == 16
    return v[0] + v[1];
#else
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
#endif
}
NK_INLINE double total(vf v) {
#if NK_BYTES == 64
    __m256 low = _mm512_castps512_ps256((__m512)v), high = _mm512_extractf32x8_ps((__m512)v, 1);
    return total((vd)_mm512_add_pd(_mm512_cvtps_pd(low), _mm512_cvtps_pd(high)));
#elif NK_BYTES == 32
    __m128 low = _mm256_castps256_ps128((__m256)v), high = _mm256_extractf128_ps((__m256)v, 1);
    return total((vd)_mm256_add_pd(_mm256_cvtps_pd(low), _mm256_cvtps_pd(high)));
#else
    return (double(v[0]) + v[2]) + (double(v[1]) + v[3]);
#endif
}

// The last few numbers of a row. Out of line, because every pass has one.
template <class T> __attribute__((noinline)) auto load_part(const T *p, int64_t n) {
    T padded[LANES<typename Of<T>::C>];
    __builtin_memset(padded, 0, sizeof padded);
    __builtin_memcpy(padded, p, n * sizeof(T));
    return load(padded);
}
template <class T, class V> __attribute__((noinline)) void store_part(T *p, V v, int64_t n) {
    T padded[LANES<typename Of<T>::C>];
    store(padded, v);
    __builtin_memcpy(p, padded, n * sizeof(T));
}

// How a pass touches memory: a whole register, the last few numbers of a row, or past the cache.
struct Whole {
    template <class T> NK_INLINE auto load(const T *p) const { return NK_ISA::load(p); }
    template <class T, class V> NK_INLINE void store(T *p, V v) const { NK_ISA::store(p, v); }
    template <class T, class V> NK_INLINE void output(T *p, V v) const { NK_ISA::store(p, v); }
    template <class V> NK_INLINE V keep(V v) const { return v; }
    template <class C> NK_INLINE typename Vec<C>::I where(const bool *p) const {
        return __builtin_convertvector(raw<typename Vec<C>::B>(p), typename Vec<C>::I) != 0;
    }
};
struct Streaming : Whole {
    template <class T, class V> NK_INLINE void output(T *p, V v) const { NK_ISA::stream(p, v); }
};
struct Even : Whole {
    NK_INLINE vf load(const bf16 *p) const { return load_even(p); }
};
struct Odd : Whole {
    NK_INLINE vf load(const bf16 *p) const { return load_odd(p); }
};
// The last n numbers of a row, fewer than a register. A row that has a register of them takes its last whole one,
// whose lanes that have been done before are kept out of sums; stores write them again, and so must not depend on
// what they overwrite. A row that has not goes through a padded copy.
struct End {
    int64_t n;
    bool whole;
    template <class T> NK_INLINE int64_t done() const { return LANES<typename Of<T>::C> - n; }
    template <class T> NK_INLINE auto load(const T *p) const { return whole ? NK_ISA::load(p - done<T>()) : load_part(p, n); }
    template <class T, class V> NK_INLINE void store(T *p, V v) const {
        if (whole) NK_ISA::store(p - done<T>(), v);
        else store_part(p, v, n);
    }
    template <class T, class V> NK_INLINE void output(T *p, V v) const { store(p, v); }
    // Nothing of what was done before, or padded.
    NK_INLINE vf keep(vf v) const { return (vf)((vi32)v & own<float>(vi32{})); }
    NK_INLINE vd keep(vd v) const { return (vd)((vi64)v & own<double>(vi64{})); }
    template <class C, class I> NK_INLINE I own(I lane) const {
        for (int k = 0; k < LANES<C>; ++k) lane[k] = k;
        return whole ? lane >= (decltype(lane[0] + 0))(LANES<C> - n) : lane < (decltype(lane[0] + 0))n;
    }
    template <class C> NK_INLINE typename Vec<C>::I where(const bool *p) const {
        if (whole) return Whole().where<C>(p - (LANES<C> - n));
        bool padded[LANES<C>];
        __builtin_memset(padded, 0, sizeof padded);
        __builtin_memcpy(padded, p, n);
        return Whole().where<C>(padded);
    }
};

// Sums of n numbers, K of them at once. `body(at, j, sums)` adds the register at j, of which at.keep leaves what
// belongs to the row. Registers add up at most BLOCK numbers, which keeps float32 sums exact to a few units; blocks
// are added in double. PAIRS: of bfloat16 alone, by even and odd places.
constexpr int64_t BLOCK = 2048;
template <class C, bool PAIRS = false, int K, class Body> NK_INLINE void reduce(int64_t n, double (&sums)[K], Body body) {
    using V = typename Vec<C>::V;
    constexpr int64_t W = LANES<C>, U = K > 2 ? 2 : 4;
    for (int k = 0; k < K; ++k) sums[k] = 0;
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t to = from + BLOCK < n ? from + BLOCK : n;
        V acc[U][K]; // "= {}" would be a call
#pragma GCC unroll 4
        for (int64_t u = 0; u < U; ++u)
#pragma GCC unroll 4
            for (int k = 0; k < K; ++k) acc[u][k] = V{};
        int64_t j = from;
        for (; j + U * W <= to; j += U * W)
#pragma GCC unroll 4
            for (int64_t u = 0; u < U; ++u) {
                if constexpr (!PAIRS) body(Whole(), j + u * W, acc[u]);
                else if (u % 2 == 0) body(Even(), j + u * W, acc[u]);
                else body(Odd(), j + (u - 1) * W, acc[u]);
            }
        for (; j + W <= to; j += W) body(Whole(), j, acc[0]);
        if (j < to) body(End{to - j, n >= W}, j, acc[0]);
#pragma GCC unroll 4
        for (int k = 0; k < K; ++k) {
            V v = acc[0][k];
#pragma GCC unroll 4
            for (int64_t u = 1; u < U; ++u) v += acc[u][k];
            sums[k] += total(v);
        }
    }
}

// body(at, j) for every register of n numbers. The tail is written twice, and so must not be read again; in place, once.
template <class C, class At, class Body> NK_INLINE void map(At at, int64_t n, Body body, bool in_place = false, int64_t j = 0) {
    constexpr int64_t W = LANES<C>;
#pragma GCC unroll 2
    for (; j + W <= n; j += W) body(at, j);
    if (j < n) body(End{n - j, n >= W && !in_place}, j);
}

// The same for a body that adds to what is there.
template <class C, class Body> NK_INLINE void update(int64_t n, Body body) {
    constexpr int64_t W = LANES<C>;
    int64_t j = 0;
    for (; j + W <= n; j += W) body(Whole(), j);
    if (j < n) body(End{n - j, false}, j);
}
