// The address sanitizer's functions. They are weak: null in builds without it, so no #ifdef is needed.
#ifndef CUDASIM_SANITIZER_H
#define CUDASIM_SANITIZER_H

#include <cstddef>

extern "C" {
void __sanitizer_start_switch_fiber(void **fake_stack, const void *bottom, size_t bytes)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *bytes)
    __attribute__((weak));
void __asan_poison_memory_region(void const volatile *address, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(void const volatile *address, size_t bytes) __attribute__((weak));
}

// For functions of the simulator that read memory which is poisoned for other code.
#define CUDASIM_UNCHECKED __attribute__((no_sanitize_address))

namespace cudasim {

inline void poison(const void *address, size_t bytes) {
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(address, bytes);
}

inline void unpoison(const void *address, size_t bytes) {
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(address, bytes);
}

} // namespace cudasim

#endif
