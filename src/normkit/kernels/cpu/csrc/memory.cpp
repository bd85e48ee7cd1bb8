// What the kernels know of the machine's memory: how large its cache is, large pages, and room of a thread's own.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "tensor.h"

namespace normkit {
namespace {

// In bytes, or 0. Linux says it better than glibc, which adds up the caches of all cores of some machines.
int64_t cache_in_sysfs() {
    std::FILE *file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (!file) return 0;
    long long size = 0;
    char unit = 0;
    const int read = std::fscanf(file, "%lld%c", &size, &unit);
    std::fclose(file);
    if (read < 1 || size <= 0) return 0;
    return size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)
// Time that this thread has worked: being put aside for another one is not what a page costs.
int64_t worked() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}
#endif

} // namespace

int64_t last_level_cache() {
    static const int64_t bytes = [] {
        int64_t found = cache_in_sysfs();
#if defined(_SC_LEVEL3_CACHE_SIZE)
        if (found <= 0) found = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
        return found > 0 ? found : int64_t(32) << 20;
    }();
    return bytes;
}

// Where memory is in pieces the kernel first moves it about, which takes longer than small pages do: if the first
// page is slow to come, do without for the next few calls, and try again.
void ask_for_large_pages(void *data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr int64_t PAGE = int64_t(2) << 20, SLOW = 2000000;
    constexpr int FEW = 4, MANY = 64;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t from = (begin + PAGE - 1) / PAGE * PAGE, to = (begin + bytes) / PAGE * PAGE;
    static std::atomic<int> without{0}, pause{FEW};
    if (from >= to || (without > 0 && without-- > 0)) return;
    madvise(reinterpret_cast<void *>(from), to - from, MADV_HUGEPAGE);
    const int64_t start = worked();
    *reinterpret_cast<volatile char *>(from) = 0;
    if (worked() - start < SLOW) {
        pause = FEW;
        return;
    }
    madvise(reinterpret_cast<void *>(from), to - from, MADV_NOHUGEPAGE);
    without = pause.load();
    pause = pause * 2 < MANY ? pause * 2 : MANY;
#else
    (void)data, (void)bytes;
#endif
}

void *scratch(int64_t bytes) {
    static thread_local std::vector<char> memory;
    if (int64_t(memory.size()) < bytes) memory.resize(bytes);
    return memory.data();
}

} // namespace normkit
