// The AVX-512 instructions that the kernels use, in two halves of AVX2: so that the kernels for 64-byte registers can be
// run, and tested, on a machine that has none (make avx512-emulated). Never part of a build for users.
#pragma once

#include <immintrin.h>

namespace normkit {
namespace emulated {

#define NK_EMULATED static inline __attribute__((always_inline, target("avx2,fma,f16c")))

template <class Half, class Whole> NK_EMULATED Half half(const Whole &v, int k) {
    Half h;
    __builtin_memcpy(&h, reinterpret_cast<const char *>(&v) + k * sizeof h, sizeof h);
    return h;
}
template <class Whole, class Half> NK_EMULATED Whole whole(Half low, Half high) {
    Whole v;
    __builtin_memcpy(&v, &low, sizeof low);
    __builtin_memcpy(reinterpret_cast<char *>(&v) + sizeof low, &high, sizeof high);
    return v;
}

NK_EMULATED __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return whole<__m512>(_mm256_fmadd_ps(half<__m256>(a, 0), half<__m256>(b, 0), half<__m256>(c, 0)),
                         _mm256_fmadd_ps(half<__m256>(a, 1), half<__m256>(b, 1), half<__m256>(c, 1)));
}
NK_EMULATED __m512d fmadd_pd(__m512d a, __m512d b, __m512d c) {
    return whole<__m512d>(_mm256_fmadd_pd(half<__m256d>(a, 0), half<__m256d>(b, 0), half<__m256d>(c, 0)),
                          _mm256_fmadd_pd(half<__m256d>(a, 1), half<__m256d>(b, 1), half<__m256d>(c, 1)));
}
NK_EMULATED __m512d add_pd(__m512d a, __m512d b) {
    return whole<__m512d>(_mm256_add_pd(half<__m256d>(a, 0), half<__m256d>(b, 0)),
                          _mm256_add_pd(half<__m256d>(a, 1), half<__m256d>(b, 1)));
}
NK_EMULATED __m512d sqrt_pd(__m512d a) {
    return whole<__m512d>(_mm256_sqrt_pd(half<__m256d>(a, 0)), _mm256_sqrt_pd(half<__m256d>(a, 1)));
}
NK_EMULATED __m512i add_epi32(__m512i a, __m512i b) {
    return whole<__m512i>(_mm256_add_epi32(half<__m256i>(a, 0), half<__m256i>(b, 0)),
                          _mm256_add_epi32(half<__m256i>(a, 1), half<__m256i>(b, 1)));
}
NK_EMULATED __m512 cvtph_ps(__m256i a) {
    return whole<__m512>(_mm256_cvtph_ps(half<__m128i>(a, 0)), _mm256_cvtph_ps(half<__m128i>(a, 1)));
}
template <int ROUND> NK_EMULATED __m256i cvtps_ph(__m512 a) {
    return whole<__m256i>(_mm256_cvtps_ph(half<__m256>(a, 0), ROUND), _mm256_cvtps_ph(half<__m256>(a, 1), ROUND));
}
NK_EMULATED __m512d cvtps_pd(__m256 a) {
    return whole<__m512d>(_mm256_cvtps_pd(half<__m128>(a, 0)), _mm256_cvtps_pd(half<__m128>(a, 1)));
}
NK_EMULATED __m512 permutex2var_ps(__m512 a, __m512i index, __m512 b) {
    float from[32], to[16];
    int at[16];
    __builtin_memcpy(from, &a, sizeof a);
    __builtin_memcpy(from + 16, &b, sizeof b);
    __builtin_memcpy(at, &index, sizeof at);
    for (int k = 0; k < 16; ++k) to[k] = from[at[k] & 31];
    __m512 v;
    __builtin_memcpy(&v, to, sizeof v);
    return v;
}
NK_EMULATED __m512i set1_epi32(int value) { return whole<__m512i>(_mm256_set1_epi32(value), _mm256_set1_epi32(value)); }
NK_EMULATED __m512i setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m,
                               int n, int o, int p) {
    return whole<__m512i>(_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p));
}
NK_EMULATED void stream_ps(float *p, __m512 v) { // aligned to 64 bytes, as the instruction wants it
    _mm256_stream_ps(p, half<__m256>(v, 0));
    _mm256_stream_ps(p + 8, half<__m256>(v, 1));
}

NK_EMULATED void stream_pd(double *p, __m512d v) {
    _mm256_stream_pd(p, half<__m256d>(v, 0));
    _mm256_stream_pd(p + 4, half<__m256d>(v, 1));
}

NK_EMULATED void stream_si512(__m512i *p, __m512i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i *>(p), half<__m256i>(v, 0));
    _mm256_stream_si256(reinterpret_cast<__m256i *>(p) + 1, half<__m256i>(v, 1));
}

} // namespace emulated
} // namespace normkit

#define _mm512_fmadd_ps normkit::emulated::fmadd_ps
#define _mm512_fmadd_pd normkit::emulated::fmadd_pd
#define _mm512_add_pd normkit::emulated::add_pd
#define _mm512_sqrt_pd normkit::emulated::sqrt_pd
#define _mm512_add_epi32 normkit::emulated::add_epi32
#define _mm512_cvtph_ps normkit::emulated::cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, round) normkit::emulated::cvtps_ph<round>(a)
#define _mm512_cvtps_pd normkit::emulated::cvtps_pd
#define _mm512_permutex2var_ps normkit::emulated::permutex2var_ps
#define _mm512_set1_epi32 normkit::emulated::set1_epi32
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 normkit::emulated::setr_epi32
#define _mm512_stream_ps normkit::emulated::stream_ps
#define _mm512_stream_pd normkit::emulated::stream_pd
#define _mm512_stream_si512 normkit::emulated::stream_si512
#define _mm512_castpd512_pd256(a) normkit::emulated::half<__m256d>(a, 0)
#define _mm512_castps512_ps256(a) normkit::emulated::half<__m256>(a, 0)
#undef _mm512_extractf32x8_ps
#undef _mm512_extractf64x4_pd
#define _mm512_extractf32x8_ps(a, k) normkit::emulated::half<__m256>(a, k)
#define _mm512_extractf64x4_pd(a, k) normkit::emulated::half<__m256d>(a, k)
