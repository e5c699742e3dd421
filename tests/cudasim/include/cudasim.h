// The simulator's own interface: for tests, and for the emulated instructions (kernels/cuda/ptx.cuh) and
// libraries (cublasLt). Valid in C (the first part) and C++.
#ifndef CUDASIM_H
#define CUDASIM_H

#ifdef __cplusplus
extern "C" {
#endif

// The number of findings: faults of the program under test. Each is printed once on standard error, and makes
// the process exit with a failure. After a finding in a kernel every later call fails, as after a fault on a
// device.
int cudasim_findings(void);
const char *cudasim_last_finding(void); // its text, valid until the next finding; "" if there is none
// Forgets findings and the sticky error. Only for tests that provoke them.
void cudasim_reset(void);
// Checks the red zones of all memory now; each damage is a finding. (cudaFree and the exit check them too.)
void cudasim_check_memory(void);
// Delays and reorders the work of streams by this seed from now on (0: immediate, in issue order), like the
// environment variable CUDASIM_REORDER. No work may be pending.
void cudasim_reorder(unsigned seed);
// Permutes threads within a block and blocks within a grid by this seed (0: by number), like CUDASIM_ORDER.
void cudasim_order(unsigned seed);
// Whether every memory access of kernels is checked (VARIANT=cudasim-race).
int cudasim_sees_accesses(void);

#ifdef __cplusplus
}

#    include <cstddef>
#    include <functional>

struct CUstream_st;

namespace cudasim {

// ---- for instructions, called within a kernel

unsigned lane();   // the running thread's number in its warp
unsigned thread(); // and in its block, x fastest

// An instruction that the lanes of `mask` execute together. Each calls it with its own record. When all have
// arrived, `apply` runs once with their records (NULL for lanes outside the mask), and all continue.
//   what   names the instruction in messages
// Lanes that arrive with another mask, instruction or context, or that have left the kernel, are a finding.
// It does not order memory accesses; where the instruction does, call __syncwarp afterwards.
void warp_collective(unsigned mask, const char *what, void *record,
                     void (*apply)(void *const records[32], unsigned mask, void *context), void *context);

// The block's dynamic shared memory, aligned to 128 bytes (NULL if the launch requested none).
void *dynamic_shared_memory();
size_t dynamic_shared_bytes();

// Declare accesses of the running thread that the compiler does not see, because an instruction makes them.
// Each is checked as if the kernel had made it (bounds in every build; races and initialization in the race
// build); an invalid one aborts the launch. `place`: the return address whose line findings report; by
// default that of the calling function.
void shared_read(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void shared_written(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
// An asynchronous write: between its begin and its end, both declared by the same thread, no thread may read
// or write there.
void shared_write_begins(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void shared_write_ends(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void global_read(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void global_written(const void *address, size_t bytes, const void *place = __builtin_return_address(0));

// One pointer per thread, for state between instructions (NULL when the thread starts). If it is not NULL
// when the thread leaves the kernel, at_end(pointer) is called on that thread.
void *&thread_slot(void (*at_end)(void *pointer));

// Reports a finding about the running thread and continues.
void finding(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Reports a finding about the running thread and aborts the launch.
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- for libraries, called on the host

// Issues work to a stream; it runs in stream order, possibly after this call, so it must capture what it
// needs by value. `what` names it in messages. Returns a cudaError_t: a sticky error, or the work's own
// result if it has already run.
int enqueue(CUstream_st *stream, const char *what, std::function<int()> work);
// Whether [address, address + bytes) is inside one live allocation that the device can access; if not,
// reports a finding about `what`.
bool check_device_memory(const char *what, const void *address, size_t bytes);

} // namespace cudasim
#endif

#endif
