// The simulator's own interface: what tests ask it, and what the emulated instructions (kernels/cuda/ptx.cuh)
// and libraries (cublasLt) are built on. Valid in C (the first part) and C++.
#ifndef CUDASIM_H
#define CUDASIM_H

#ifdef __cplusplus
extern "C" {
#endif

// A finding is a fault of the program under test: printed once on standard error, counted, and told again at
// exit, which then is not 0. A finding in a kernel makes every later call fail as after a fault on a device.
int cudasim_findings(void);
const char *cudasim_last_finding(void); // its text, "" when there is none; until the next finding
// Forgets findings and the sticky error: for tests that provoke them, and for nothing else.
void cudasim_reset(void);
// Checks the red zones of all memory now; each damage is a finding. (Always done by cudaFree and at exit.)
void cudasim_check_memory(void);
// Delays and reorders the work of streams by this seed from now on (0: issue order at once), as the
// environment variable CUDASIM_REORDER. No work may be under way.
void cudasim_reorder(unsigned seed);
// Permutes threads within a block and blocks within a grid by this seed (0: in order), as CUDASIM_ORDER.
void cudasim_order(unsigned seed);
// Whether the kernels were built with their accesses shown (VARIANT=cudasim-race).
int cudasim_sees_accesses(void);

#ifdef __cplusplus
}

#    include <cstddef>
#    include <functional>

struct CUstream_st;

namespace cudasim {

// ---- for instructions, within a kernel

unsigned lane();   // of the running thread in its warp
unsigned thread(); // its number in the block, x fastest

// Every lane of the mask calls it with its own record; when all have arrived, `apply` runs once with the
// records of all (NULL for lanes outside the mask), then all go on. `what` names the instruction in messages.
// Lanes that come with another mask, instruction or context, or that have left the kernel, are a finding.
// Orders no memory: a caller that must, follows with __syncwarp.
void warp_collective(unsigned mask, const char *what, void *record,
                     void (*apply)(void *const records[32], unsigned mask, void *context), void *context);

// The block's dynamic shared memory, aligned to 128 bytes (NULL when the launch asked for none).
void *dynamic_shared_memory();
size_t dynamic_shared_bytes();

// The running thread's accesses that the compiler does not show, because an instruction makes them: each is
// checked as if the kernel had made it (bounds in every build; races and initialisation in the race build).
// What may not be accessed ends the launch. `place` is what findings give as the access's line: by itself,
// the line that called the calling function.
void shared_read(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void shared_written(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
// A write that takes its time: from its begin to its end, which the same thread declares, nobody may read or
// write there.
void shared_write_begins(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void shared_write_ends(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void global_read(const void *address, size_t bytes, const void *place = __builtin_return_address(0));
void global_written(const void *address, size_t bytes, const void *place = __builtin_return_address(0));

// One pointer a thread for what an instruction must remember (NULL at the thread's start). Where it is not
// NULL when the thread leaves the kernel, at_end(pointer) is called, still as that thread.
void *&thread_slot(void (*at_end)(void *pointer));

// Reports a finding about the running thread and goes on.
void finding(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Reports it and gives up the launch: for what makes no sense to go on with.
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- for libraries, on the host

// Gives work to a stream: in stream order like a launch. `what` names it in messages. What it captures by
// value must be all that it needs later. Returns a cudaError_t: a sticky error, or what the work gave if it
// ran already.
int enqueue(CUstream_st *stream, const char *what, std::function<int()> work);
// Whether [address, address + bytes) lies in one live allocation that a device may reach; if not, a finding
// that begins with `what`.
bool check_device_memory(const char *what, const void *address, size_t bytes);

} // namespace cudasim
#endif

#endif
