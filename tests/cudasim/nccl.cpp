// NCCL between the processes of one machine. Each communicator has a thread that does what NCCL's kernels do:
// when a group of calls has its turn on its stream, the thread exchanges the bytes, and the stream goes on
// afterwards. So a process with a communicator is in reordering mode, where work waits.
//
// A GPU would run its streams whatever its host does. Here work runs when the host waits for it, so the
// thread also drives the streams of its process once another rank has begun a group that this one has issued.
//
// Bytes carry a header with the call, the type and the count: the receiver finds calls that do not match.
#include "tests/cudasim/nccl.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cudasim.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"
extern "C" {
#include "zero/comm/nccl/api.h"
}

namespace cudasim {

namespace {

enum { UNHANDLED_CUDA = 1, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum call_kind : uint32_t { CALL_SEND = 1, CALL_ALL_GATHER };

const char *call_name(uint32_t kind) {
    static const char *const names[] = {"?", "ncclSend", "ncclAllGather"};
    return names[kind <= CALL_ALL_GATHER ? kind : 0];
}

size_t type_size(int type) {
    return type == NCCL_UINT8 ? 1 : type == NCCL_FLOAT32 ? 4 : 2;
}

bool known_type(int type) {
    return type == NCCL_UINT8 || type == NCCL_FLOAT16 || type == NCCL_FLOAT32 || type == NCCL_BFLOAT16;
}

struct header {
    uint32_t kind;
    int32_t type;
    uint64_t count;
};

// One direction of one call, from or to one rank.
struct piece {
    header head;
    char *data;
    int peer;
    size_t done = 0; // bytes of the header and the data

    size_t bytes() const {
        return size_t(head.count) * type_size(head.type);
    }
    bool is_done() const {
        return done == sizeof head + bytes();
    }
};

struct copy {
    char *to;
    const char *from;
    size_t bytes;
};

struct job {
    cudaStream_t stream;
    std::vector<piece> sends, receives;
    std::vector<copy> copies;
};

} // namespace

} // namespace cudasim

using namespace cudasim;

struct ncclComm {
    int rank, world;
    nccl_shared *shared;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<job>> begun;
    cudaStream_t last_stream = nullptr;
    uint64_t n_issued = 0, n_begun = 0, n_done = 0;
    bool stopping = false;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{NCCL_SUCCESS};
    std::thread thread;
};

namespace cudasim {

namespace {

thread_local char last_error[256];

int fail(int result, const std::string &what) {
    snprintf(last_error, sizeof last_error, "%s", what.c_str());
    return result;
}

// ---- exchanging

byte_pipe &pipe_between(ncclComm *comm, int from, int to) {
    return comm->shared->pipes[from * comm->world + to];
}

// CUDASIM_NCCL_ERROR=rank:n: that rank's n-th group fails, as after a cable is pulled: it does not end. 0:
// the rank cannot join.
bool is_failing(int rank, uint64_t group) {
    const char *value = getenv("CUDASIM_NCCL_ERROR");
    int chosen;
    unsigned long n;
    return value && sscanf(value, "%d:%lu", &chosen, &n) == 2 && rank == chosen && n == group;
}

bool push(ncclComm *comm, piece &p) {
    byte_pipe &to = pipe_between(comm, comm->rank, p.peer);
    size_t before = p.done;
    if (p.done < sizeof p.head)
        p.done += to.push(reinterpret_cast<const char *>(&p.head) + p.done, sizeof p.head - p.done);
    if (p.done >= sizeof p.head)
        p.done += to.push(p.data + (p.done - sizeof p.head), p.bytes() + sizeof p.head - p.done);
    return p.done > before;
}

bool matches(ncclComm *comm, const piece &p, const header &found) {
    if (found.kind == p.head.kind && found.type == p.head.type && found.count == p.head.count)
        return true;
    report("NCCL",
           text("calls do not match: rank %d has %s of %zu elements of type %d, where rank %d expects "
                "%s of %zu of type %d",
                p.peer, call_name(found.kind), size_t(found.count), found.type, comm->rank,
                call_name(p.head.kind), size_t(p.head.count), p.head.type));
    comm->error = INVALID_USAGE;
    return false;
}

// Nothing is pulled before the whole header is there.
bool pull(ncclComm *comm, piece &p) {
    byte_pipe &from = pipe_between(comm, p.peer, comm->rank);
    size_t before = p.done;
    if (p.done == 0) {
        header found;
        if (from.written.load() - from.read.load() < sizeof found)
            return false;
        p.done = from.pull(reinterpret_cast<char *>(&found), sizeof found);
        if (!matches(comm, p, found))
            return false;
    }
    p.done += from.pull(p.data + (p.done - sizeof p.head), p.bytes() + sizeof p.head - p.done);
    return p.done > before;
}

// Each rank's pieces to one other rank go in order; those of different ranks proceed side by side.
bool advance(ncclComm *comm, std::vector<piece> &pieces, bool (*move)(ncclComm *, piece &), bool *progress) {
    bool blocked[most_ranks] = {}, all = true;
    for (piece &p : pieces) {
        if (p.is_done())
            continue;
        if (!blocked[p.peer])
            *progress |= move(comm, p);
        blocked[p.peer] |= !p.is_done();
        all &= p.is_done();
    }
    return all;
}

bool exchange(ncclComm *comm, job &j) {
    const timespec nap = {0, 50000};
    const bool fails = is_failing(comm->rank, comm->n_done + 1);
    if (fails)
        comm->error = SYSTEM;
    for (;;) {
        bool progress = false, sent = advance(comm, j.sends, push, &progress),
             received = advance(comm, j.receives, pull, &progress);
        if (comm->aborted)
            return false;
        if (sent && received && comm->error == NCCL_SUCCESS)
            return true;
        if (!progress)
            nanosleep(&nap, nullptr);
    }
}

bool memory_is_there(const job &j) {
    for (const piece &p : j.sends)
        if (p.bytes() && !check_device_memory(call_name(p.head.kind), p.data, p.bytes()))
            return false;
    for (const piece &p : j.receives)
        if (p.bytes() && !check_device_memory(p.head.kind == CALL_SEND ? "ncclRecv" : call_name(p.head.kind),
                                              p.data, p.bytes()))
            return false;
    for (const copy &c : j.copies)
        if (!check_device_memory("ncclAllGather", c.to, c.bytes))
            return false;
    return true;
}

void run(ncclComm *comm, job &j) {
    cudaError_t error = cudaSuccess;
    open_device_memory();
    if (!memory_is_there(j))
        error = cudaErrorIllegalAddress;
    else if (exchange(comm, j)) {
        for (const copy &c : j.copies)
            memmove(c.to, c.from, c.bytes);
    }
    close_device_memory();
    {
        std::lock_guard<std::mutex> guard(comm->mutex);
        comm->n_done++;
        comm->changed.notify_all();
    }
    finish_begun(j.stream, error);
}

// ---- the thread

bool others_wait(const ncclComm *comm) {
    for (int rank = 0; rank < comm->world; rank++)
        if (comm->shared->n_begun[rank].load() > comm->n_begun)
            return true;
    return false;
}

void work(ncclComm *comm) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    while (!comm->stopping || !comm->begun.empty()) {
        if (!comm->begun.empty()) {
            std::shared_ptr<job> next = comm->begun.front();
            comm->begun.pop_front();
            lock.unlock();
            run(comm, *next);
            lock.lock();
        } else if (comm->n_begun < comm->n_issued && others_wait(comm) && !comm->aborted) {
            cudaStream_t stream = comm->last_stream;
            lock.unlock();
            const bool ran = drive_stream(stream);
            lock.lock();
            if (!ran && comm->begun.empty())
                comm->changed.wait_for(lock, std::chrono::milliseconds(1));
        } else if (comm->n_begun < comm->n_issued) {
            comm->changed.wait_for(lock, std::chrono::milliseconds(1)); // until another rank waits
        } else {
            comm->changed.wait(lock);
        }
    }
}

void begin(ncclComm *comm, const std::shared_ptr<job> &j) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->n_begun++;
    comm->shared->n_begun[comm->rank] = comm->n_begun;
    if (comm->aborted) {
        comm->n_done++;
        comm->changed.notify_all();
        lock.unlock();
        finish_begun(j->stream, cudaSuccess);
        return;
    }
    comm->begun.push_back(j);
    comm->changed.notify_all();
}

void stop_thread(ncclComm *comm) {
    {
        std::lock_guard<std::mutex> guard(comm->mutex);
        comm->stopping = true;
        comm->changed.notify_all();
    }
    comm->thread.join();
}

// ---- groups of calls

struct group {
    int depth = 0;
    ncclComm *comm = nullptr;
    std::shared_ptr<job> calls;
};
thread_local group open_group;

int issue(group &g) {
    ncclComm *comm = g.comm;
    std::shared_ptr<job> j = std::move(g.calls);
    g.comm = nullptr;
    g.calls = nullptr;
    if (!j)
        return NCCL_SUCCESS;
    {
        std::lock_guard<std::mutex> guard(comm->mutex);
        comm->n_issued++;
        comm->last_stream = j->stream;
    }
    enqueue_begun(j->stream, "NCCL", [comm, j] { begin(comm, j); });
    comm->changed.notify_all();
    return NCCL_SUCCESS;
}

// The job of the open group, which has one communicator and one stream.
int add_call(const char *name, ncclComm *comm, int type, nccl_stream stream, int peer, job **out) {
    group &g = open_group;
    if (!comm || !known_type(type) || peer < 0 || peer >= comm->world)
        return fail(INVALID_ARGUMENT,
                    text("%s: no communicator, type %d or rank %d of it", name, type, peer));
    if (check_stream(name, stream) != cudaSuccess)
        return fail(UNHANDLED_CUDA, text("%s: the stream", name));
    if (comm->aborted)
        return fail(INVALID_USAGE, text("%s: the communicator was aborted", name));
    if (!g.calls) {
        g.comm = comm;
        g.calls = std::make_shared<job>();
        g.calls->stream = stream;
    }
    if (g.comm != comm || g.calls->stream != stream) {
        report(name, "a group has calls of two communicators or streams, which zero.c does not use");
        return fail(INVALID_USAGE, text("%s: two streams in a group", name));
    }
    *out = g.calls.get();
    return NCCL_SUCCESS;
}

piece make_piece(call_kind kind, int type, size_t count, const void *data, int peer) {
    return {{kind, type, count}, static_cast<char *>(const_cast<void *>(data)), peer};
}

int end_call() {
    return open_group.depth ? NCCL_SUCCESS : issue(open_group);
}

} // namespace

} // namespace cudasim

extern "C" {

// Prototypes, as in zero/comm/nccl/api.h.
#define DECLARE(name, result, parameters) result nccl##name parameters;
NCCL_FUNCTIONS(DECLARE, int, nccl_comm, nccl_id, int, nccl_stream)
#undef DECLARE

int ncclGetVersion(int *version) {
    const char *value = getenv("CUDASIM_NCCL_VERSION");
    *version = value ? atoi(value) : 22800;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result) {
    static const char *const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? names[result] : "unknown result code";
}

const char *ncclGetLastError(nccl_comm comm) {
    return comm && comm->error == SYSTEM ? "injected by CUDASIM_NCCL_ERROR" : last_error;
}

int ncclGetUniqueId(nccl_id *id) {
    static std::atomic<unsigned> n{0};
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->bytes, sizeof id->bytes, "/cudasim-nccl-%d-%lx-%u", getpid(), long(now.tv_nsec), n++);
    return NCCL_SUCCESS;
}

int ncclCommInitRank(nccl_comm *out, int world, nccl_id id, int rank) {
    const timespec nap = {0, 1000000};
    int device, other = -1;
    *out = nullptr;
    if (world < 1 || world > most_ranks || rank < 0 || rank >= world || id.bytes[0] != '/')
        return fail(INVALID_ARGUMENT, text("ncclCommInitRank: rank %d of %d", rank, world));
    if (cudaGetDevice(&device) != cudaSuccess)
        return fail(UNHANDLED_CUDA, "ncclCommInitRank: no device");
    nccl_shared *shared = open_nccl_shared(id.bytes, world);
    if (!shared)
        return fail(SYSTEM, "ncclCommInitRank: no shared memory");
    shared->devices[rank] = device + 1;
    shared->n_joined++;
    while (shared->n_joined < world)
        nanosleep(&nap, nullptr);
    shm_unlink(id.bytes); // whoever is first; all have it
    for (int a = 0; a < world; a++)
        for (int b = 0; b < a; b++)
            other = shared->devices[a] == shared->devices[b] ? a : other;
    if (other >= 0) {
        close_nccl_shared(shared, world);
        return fail(INVALID_USAGE, text("Duplicate GPU detected : rank %d", other));
    }
    if (is_failing(rank, 0)) {
        close_nccl_shared(shared, world);
        return fail(SYSTEM, "injected by CUDASIM_NCCL_ERROR");
    }
    if (!work_is_delayed())
        cudasim_reorder(1);
    *out = new ncclComm{};
    (*out)->rank = rank;
    (*out)->world = world;
    (*out)->shared = shared;
    (*out)->thread = std::thread(work, *out);
    return NCCL_SUCCESS;
}

// Work that was issued still runs, and what was sent must have been received.
int ncclCommDestroy(nccl_comm comm) {
    std::unique_lock<std::mutex> lock(comm->mutex);
    while (comm->n_done < comm->n_issued && sticky_error() == cudaSuccess) {
        cudaStream_t stream = comm->last_stream;
        lock.unlock();
        drive_stream(stream);
        lock.lock();
        if (comm->n_done < comm->n_issued)
            comm->changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    lock.unlock();
    stop_thread(comm);
    for (int from = 0; from < comm->world; from++) {
        const byte_pipe &p = pipe_between(comm, from, comm->rank);
        if (p.written != p.read)
            report("ncclCommDestroy", text("rank %d sent what rank %d never received", from, comm->rank));
    }
    close_nccl_shared(comm->shared, comm->world);
    delete comm;
    return NCCL_SUCCESS;
}

// Pending groups still have their turn, as kernels that end at once: the communicator stays for them.
int ncclCommAbort(nccl_comm comm) {
    comm->aborted = true;
    stop_thread(comm);
    return NCCL_SUCCESS;
}

int ncclCommGetAsyncError(nccl_comm comm, int *result) {
    *result = comm->error;
    return NCCL_SUCCESS;
}

int ncclGroupStart(void) {
    open_group.depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
    if (open_group.depth == 0)
        return fail(INVALID_USAGE, "ncclGroupEnd: no group is open");
    return --open_group.depth ? NCCL_SUCCESS : issue(open_group);
}

int ncclSend(const void *data, size_t count, int type, int peer, nccl_comm comm, nccl_stream stream) {
    job *j;
    if (int result = add_call("ncclSend", comm, type, stream, peer, &j))
        return result;
    j->sends.push_back(make_piece(CALL_SEND, type, count, data, peer));
    return end_call();
}

int ncclRecv(void *data, size_t count, int type, int peer, nccl_comm comm, nccl_stream stream) {
    job *j;
    if (int result = add_call("ncclRecv", comm, type, stream, peer, &j))
        return result;
    j->receives.push_back(make_piece(CALL_SEND, type, count, data, peer));
    return end_call();
}

int ncclAllGather(const void *from, void *to, size_t count, int type, nccl_comm comm, nccl_stream stream) {
    job *j;
    if (int result = add_call("ncclAllGather", comm, type, stream, 0, &j))
        return result;
    const size_t bytes = count * type_size(type);
    char *out = static_cast<char *>(to);
    for (int rank = 0; rank < comm->world; rank++) {
        if (rank == comm->rank) {
            j->copies.push_back({out + size_t(rank) * bytes, static_cast<const char *>(from), bytes});
            continue;
        }
        j->sends.push_back(make_piece(CALL_ALL_GATHER, type, count, from, rank));
        j->receives.push_back(make_piece(CALL_ALL_GATHER, type, count, out + size_t(rank) * bytes, rank));
    }
    return end_call();
}

} // extern "C"
