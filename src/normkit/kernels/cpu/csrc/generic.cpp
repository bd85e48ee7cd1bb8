// Any machine: registers of 16 bytes, which are SSE2 on x86-64 and NEON on aarch64.
#include <type_traits>

#include "scalar.h"

#define NK_ISA generic
#define NK_BYTES 16
#include "isa.inc"
