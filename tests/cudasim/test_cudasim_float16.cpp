// Tests the simulator's bf16 and half against the definition of their formats: a value is
// (-1)^sign 2^(exponent - bias) (1 + mantissa / 2^bits), and rounding picks the nearest multiple of the unit,
// on a tie the even one.
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

extern "C" {
#include <cmocka.h>
}

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

struct bfloat16_rules {
    using type = __nv_bfloat16;
    static constexpr int mantissa_bits = 7, bias = 127;
    static float upcast(type x) {
        return __bfloat162float(x);
    }
    static type downcast(float x) {
        return __float2bfloat16_rn(x);
    }
};

struct half_rules {
    using type = __half;
    static constexpr int mantissa_bits = 10, bias = 15;
    static float upcast(type x) {
        return __half2float(x);
    }
    static type downcast(float x) {
        return __float2half_rn(x);
    }
};

template <class T> uint16_t element_bits(T x) {
    uint16_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

template <class T> T element_of(uint16_t bits) {
    T x;
    std::memcpy(static_cast<void *>(&x), &bits, sizeof bits);
    return x;
}

template <class Rules> double value_of(unsigned bits) {
    const int all_ones = 2 * Rules::bias + 1;
    const unsigned mantissa_range = 1u << Rules::mantissa_bits;
    const int exponent = static_cast<int>(bits >> Rules::mantissa_bits) & all_ones;
    const double fraction = static_cast<double>(bits % mantissa_range) / mantissa_range;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == all_ones)
        return fraction == 0 ? sign * INFINITY : NAN;
    if (exponent == 0)
        return sign * std::ldexp(fraction, 1 - Rules::bias);
    return sign * std::ldexp(1 + fraction, exponent - Rules::bias);
}

template <class Rules> double rounded(double x) {
    if (x == 0 || !std::isfinite(x))
        return x;
    int exponent;
    std::frexp(x, &exponent); // |x| in [1/2, 1) 2^exponent
    exponent = exponent - 1 < 1 - Rules::bias ? 1 - Rules::bias : exponent - 1;
    const double unit = std::ldexp(1, exponent - Rules::mantissa_bits);
    const double nearest = std::nearbyint(x / unit) * unit;
    return std::fabs(nearest) >= std::ldexp(1, Rules::bias + 1) ? std::copysign(INFINITY, x) : nearest;
}

// Equal as numbers, with the sign of zero; every NaN is 0x7fff, as on the device.
template <class Rules> void assert_is(typename Rules::type got, double expected) {
    const double value = value_of<Rules>(element_bits(got));
    if (std::isnan(expected))
        assert_int_equal(element_bits(got), 0x7fff);
    else if (value != expected || std::signbit(value) != std::signbit(expected))
        fail_msg("expected %a, got %a (bits %04x)", expected, value, element_bits(got));
}

float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <class Rules> void test_every_value(void **) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        const double value = value_of<Rules>(bits);
        const float value_upcast =
            Rules::upcast(element_of<typename Rules::type>(static_cast<uint16_t>(bits)));
        if (std::isnan(value)) {
            assert_true(std::isnan(value_upcast));
            continue;
        }
        assert_true(static_cast<double>(value_upcast) == value && std::signbit(value_upcast) == bits >> 15);
        assert_int_equal(element_bits(Rules::downcast(value_upcast)), bits);
    }
}

// Halfway between neighbours, and one float to either side: the cases where rounding changes.
template <class Rules> void test_ties(void **) {
    const unsigned infinity = (2 * Rules::bias + 1) << Rules::mantissa_bits;
    for (unsigned bits = 0; bits < infinity; bits++) {
        const double low = value_of<Rules>(bits);
        const double high = bits + 1 < infinity ? value_of<Rules>(bits + 1) : std::ldexp(1, Rules::bias + 1);
        const uint32_t middle = bits_of(static_cast<float>((low + high) / 2));
        for (uint32_t at = middle - 1; at <= middle + 1; at++)
            for (uint32_t sign = 0; sign < 2; sign++) {
                const float x = float_of(at | sign << 31);
                assert_is<Rules>(Rules::downcast(x), rounded<Rules>(static_cast<double>(x)));
            }
    }
}

template <class Rules> void test_floats(void **) {
    for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 1021) {
        const double x = static_cast<double>(float_of(static_cast<uint32_t>(bits)));
        assert_is<Rules>(Rules::downcast(float_of(static_cast<uint32_t>(bits))), rounded<Rules>(x));
    }
}

// What kernels rely on in the toolkit's types: their size; that arrays of them in shared memory run no
// constructor; that a pair holds the low element in the low half.
template <class T, class Pair> void check_type() {
    static_assert(sizeof(T) == 2 && alignof(T) == 2 && sizeof(Pair) == 4 && alignof(Pair) == 4, "");
    static_assert(std::is_trivial<T>::value && std::is_trivial<Pair>::value, "");
    static_assert(std::is_standard_layout<T>::value && std::is_standard_layout<Pair>::value, "");
}

void test_pairs(void **) {
    check_type<__nv_bfloat16, __nv_bfloat162>();
    check_type<__half, __half2>();
    uint32_t bits;
    const __half2 h = __floats2half2_rn(1.5f, -2.25f);
    std::memcpy(&bits, &h, sizeof bits);
    assert_int_equal(bits, 0xc0803e00u);
    const __nv_bfloat162 b = __floats2bfloat162_rn(1.5f, -2.25f);
    std::memcpy(&bits, &b, sizeof bits);
    assert_int_equal(bits, 0xc0103fc0u);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value<bfloat16_rules>),
        cmocka_unit_test(test_every_value<half_rules>),
        cmocka_unit_test(test_ties<bfloat16_rules>),
        cmocka_unit_test(test_ties<half_rules>),
        cmocka_unit_test(test_floats<bfloat16_rules>),
        cmocka_unit_test(test_floats<half_rules>),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
