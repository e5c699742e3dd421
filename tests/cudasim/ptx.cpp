// The simulator's implementation of kernels/cuda/ptx.cuh, with the fragment layouts and rules of NVIDIA's
// "Parallel Thread Execution ISA". Instructions of a warp go through warp_collective; the last lane to arrive
// does the work for all.
#include <cinttypes>
#include <cstring>
#include <vector>

#include "kernels/cuda/ptx.cuh"

namespace {

constexpr unsigned warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// ---- mma

struct mma_operands {
    mma_c *d;
    const mma_a *a;
    const mma_b *b;
};

// Eight floats: a row of B or D. The compiler maps it to the processor's vectors.
using row_of_eight = float __attribute__((vector_size(32)));

template <class Format, size_t n> void decode_all(float (&values)[n], const uint16_t (&bits)[n]) {
    for (size_t i = 0; i < n; i++)
        values[i] = Format::decode(bits[i]);
}

// Moves the fragments' elements to their places in the matrices as bits, decodes each matrix in one loop, and
// multiplies. A product is exact in float (unless two bfloat16 exceed its range), so fusing it with the sum
// would change nothing.
template <class Format> void multiply(void *const records[warp_size], unsigned, void *) {
    uint16_t a_bits[16 * 16], b_bits[16 * 8];
    row_of_eight d[16];
    for (unsigned lane = 0; lane < warp_size; lane++) {
        const mma_operands *of_lane = static_cast<const mma_operands *>(records[lane]);
        const unsigned group = lane / 4, place = lane % 4;
        for (unsigned i = 0; i < 4; i++) {
            uint16_t *to = a_bits + (group + i % 2 * 8) * 16 + i / 2 * 8 + place * 2;
            to[0] = static_cast<uint16_t>(of_lane->a->x[i]);
            to[1] = static_cast<uint16_t>(of_lane->a->x[i] >> 16);
        }
        for (unsigned i = 0; i < 2; i++) {
            uint16_t *to = b_bits + (i * 8 + place * 2) * 8 + group;
            to[0] = static_cast<uint16_t>(of_lane->b->x[i]);
            to[8] = static_cast<uint16_t>(of_lane->b->x[i] >> 16);
        }
        for (unsigned i = 0; i < 4; i++)
            d[group + i / 2 * 8][place * 2 + i % 2] = of_lane->d->x[i];
    }

    float a[16 * 16], b_elements[16 * 8];
    row_of_eight b[16];
    decode_all<Format>(a, a_bits);
    decode_all<Format>(b_elements, b_bits);
    std::memcpy(b, b_elements, sizeof b);
    for (unsigned row = 0; row < 16; row++) {
        row_of_eight sum = d[row];
        for (unsigned k = 0; k < 16; k++)
            sum += a[row * 16 + k] * b[k];
        d[row] = sum;
    }
    for (unsigned lane = 0; lane < warp_size; lane++) {
        mma_c *to = static_cast<const mma_operands *>(records[lane])->d;
        for (unsigned i = 0; i < 4; i++)
            to->x[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

// ---- ldmatrix

struct ldmatrix_operands {
    const void *row;
    uint32_t *r;
};

template <bool transposed> void load_matrices(void *const records[warp_size], unsigned, void *) {
    for (unsigned i = 0; i < 4; i++) {
        uint16_t matrix[8][8];
        for (unsigned row = 0; row < 8; row++)
            std::memcpy(matrix[row], static_cast<const ldmatrix_operands *>(records[i * 8 + row])->row, 16);
        for (unsigned lane = 0; lane < warp_size; lane++) {
            const unsigned group = lane / 4, place = lane % 4 * 2;
            const uint32_t low = transposed ? matrix[place][group] : matrix[group][place];
            const uint32_t high = transposed ? matrix[place + 1][group] : matrix[group][place + 1];
            static_cast<const ldmatrix_operands *>(records[lane])->r[i] = low | high << 16;
        }
    }
}

void check_alignment(const char *what, const char *side, const void *address) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        cudasim::fault("%s: the %s %p is not aligned to 16 bytes", what, side, address);
}

// The row at a lane's address counts as read by that lane, when it arrives: a write that is ordered only
// before other lanes is a race.
template <bool transposed>
void ldmatrix(const char *what, uint32_t (&r)[4], const void *row, const void *place) {
    check_alignment(what, "row's address", row);
    cudasim::shared_read(row, 16, place);
    ldmatrix_operands operands = {row, r};
    cudasim::warp_collective(all_lanes, what, &operands, load_matrices<transposed>, nullptr);
}

// ---- cp.async

struct copy {
    void *shared;
    const void *global; // NULL: zeros
};

// A thread's copies in flight, oldest first, and the index at which each committed group ends.
struct copies_under_way {
    std::vector<copy> copies;
    std::vector<size_t> group_ends;
};

// Empty lists, kept for later threads to avoid allocating memory again.
std::vector<copies_under_way *> &spare_lists() {
    static thread_local struct lists {
        std::vector<copies_under_way *> spare;
        ~lists() {
            for (copies_under_way *list : spare)
                delete list;
        }
    } lists;
    return lists.spare;
}

// A thread may leave the kernel with copies in flight; no thread can use their bytes any more.
void release_list(void *slot) {
    copies_under_way *list = static_cast<copies_under_way *>(slot);
    list->copies.clear();
    list->group_ends.clear();
    spare_lists().push_back(list);
}

copies_under_way &copies_of_thread() {
    void *&slot = cudasim::thread_slot(release_list);
    if (slot == nullptr) {
        std::vector<copies_under_way *> &spare = spare_lists();
        if (spare.empty()) {
            slot = new copies_under_way;
        } else {
            slot = spare.back();
            spare.pop_back();
        }
    }
    return *static_cast<copies_under_way *>(slot);
}

void finish(const copy &copy, const void *place) {
    cudasim::shared_write_ends(copy.shared, 16, place);
    if (copy.global == nullptr) {
        std::memset(copy.shared, 0, 16);
    } else {
        cudasim::global_read(copy.global, 16, place);
        std::memcpy(copy.shared, copy.global, 16);
    }
}

} // namespace

template <> void mma_m16n8k16<__nv_bfloat16>(mma_c &d, const mma_a &a, const mma_b &b) {
    mma_operands operands = {&d, &a, &b};
    cudasim::warp_collective(all_lanes, "mma.m16n8k16 of bf16", &operands, multiply<cudasim::bfloat16_format>,
                             nullptr);
}

template <> void mma_m16n8k16<__half>(mma_c &d, const mma_a &a, const mma_b &b) {
    mma_operands operands = {&d, &a, &b};
    cudasim::warp_collective(all_lanes, "mma.m16n8k16 of f16", &operands, multiply<cudasim::half_format>,
                             nullptr);
}

void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    ldmatrix<false>("ldmatrix.x4", r, row, __builtin_return_address(0));
}

void ldmatrix_x4_transposed(uint32_t (&r)[4], const void *row) {
    ldmatrix<true>("ldmatrix.x4.trans", r, row, __builtin_return_address(0));
}

void cp_async_16(void *shared, const void *global, bool valid) {
    check_alignment("cp.async", "destination", shared);
    check_alignment("cp.async", "source", global);
    cudasim::shared_write_begins(shared, 16);
    if (valid)
        cudasim::global_read(global, 16);
    std::memset(shared, 0xff, 16);
    copies_of_thread().copies.push_back({shared, valid ? global : nullptr});
}

void cp_async_commit() {
    copies_under_way &list = copies_of_thread();
    list.group_ends.push_back(list.copies.size());
}

void cudasim::cp_async_wait(size_t n_groups_left) {
    copies_under_way &list = copies_of_thread();
    if (list.group_ends.size() <= n_groups_left)
        return;
    const size_t n_groups = list.group_ends.size() - n_groups_left;
    const size_t n_copies = list.group_ends[n_groups - 1];
    for (size_t i = 0; i < n_copies; i++)
        finish(list.copies[i], __builtin_return_address(0));
    list.copies.erase(list.copies.begin(), list.copies.begin() + static_cast<ptrdiff_t>(n_copies));
    list.group_ends.erase(list.group_ends.begin(),
                          list.group_ends.begin() + static_cast<ptrdiff_t>(n_groups));
    for (size_t &end : list.group_ends)
        end -= n_copies;
}
