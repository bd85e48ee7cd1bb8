#if defined(__x86_64__)
#include <immintrin.h>

#include <type_traits>

#include "scalar.h"

#if defined(NK_EMULATE_AVX512)
#include "avx512_emulated.h"
#pragma GCC target("avx2,fma,f16c")
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c"))), apply_to = function)
#else
#pragma GCC diagnostic ignored "-Wuninitialized" // in GCC 12's own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")
#endif

#define NK_ISA avx512
#define NK_BYTES 64
#include "isa.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
