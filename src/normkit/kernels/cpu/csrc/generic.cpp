// Any machine: registers of 16 bytes, which are SSE2 on x86-64 and NEON on aarch64.
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC optimize("O1") // for machines older than AVX2: not worth the time that a build takes
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <type_traits>

#include "scalar.h"

#define NK_ISA generic
#define NK_BYTES 16
#include "isa.inc"
