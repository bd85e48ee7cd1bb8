#if defined(__x86_64__)
#include <immintrin.h>

#include <type_traits>

#include "scalar.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define NK_ISA avx2
#define NK_BYTES 32
#include "isa.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
