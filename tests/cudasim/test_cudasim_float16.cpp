// The simulator's bf16 and half against the definition of their formats, written out slowly: a value is
// (-1)^sign 2^(exponent - bias) (1 + mantissa / 2^bits), and rounding picks the nearest multiple of the unit
// at hand, the even one of two.
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
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
    static uint16_t bits(type x) {
        return __bfloat16_as_ushort(x);
    }
    static type from_bits(uint16_t bits) {
        return __ushort_as_bfloat16(bits);
    }
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
    static uint16_t bits(type x) {
        return __half_as_ushort(x);
    }
    static type from_bits(uint16_t bits) {
        return __ushort_as_half(bits);
    }
    static float upcast(type x) {
        return __half2float(x);
    }
    static type downcast(float x) {
        return __float2half_rn(x);
    }
};

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

// Equal as numbers, the sign of a zero included; any NaN is 0x7fff, as the device makes it.
template <class Rules> void assert_is(typename Rules::type got, double expected) {
    const double value = value_of<Rules>(Rules::bits(got));
    if (std::isnan(expected))
        assert_int_equal(Rules::bits(got), 0x7fff);
    else if (value != expected || std::signbit(value) != std::signbit(expected))
        fail_msg("expected %a, got %a (bits %04x)", expected, value, Rules::bits(got));
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
        const float value_upcast = Rules::upcast(Rules::from_bits(static_cast<uint16_t>(bits)));
        if (std::isnan(value)) {
            assert_true(std::isnan(value_upcast));
            continue;
        }
        assert_true(static_cast<double>(value_upcast) == value && std::signbit(value_upcast) == bits >> 15);
        assert_int_equal(Rules::bits(Rules::downcast(value_upcast)), bits);
    }
}

// Half way between neighbours, and a float to either side: where rounding is decided.
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

// From double the value is rounded once: just above and below a tie it is no tie, though as a float it is.
template <class Rules> void test_doubles(void **) {
    using type = typename Rules::type;
    const double unit = std::ldexp(1, -Rules::mantissa_bits);
    for (int sign = -1; sign <= 1; sign += 2)
        for (int i = 0; i < 64; i++) {
            const double tie = sign * (1 + (i + 0.5) * unit);
            for (double x : {tie, tie * (1 + 0x1p-45), tie * (1 - 0x1p-45)})
                assert_is<Rules>(type(x), rounded<Rules>(x));
        }
    for (double x : {1e300, -1e300, 1e-300, -1e-300, 0.0, -0.0, double(INFINITY), double(NAN), 65519.999999})
        assert_is<Rules>(type(x), rounded<Rules>(x));
    assert_is<Rules>(type(-70001), rounded<Rules>(-70001));
    assert_is<Rules>(type(4000000001u), rounded<Rules>(4000000001.0));
    assert_is<Rules>(__hmax(type(-0.0f), type(0.0f)), 0.0);
    assert_is<Rules>(__hmin(type(0.0f), type(-0.0f)), -0.0);
}

// The exact result where a double holds it; quotients are rounded twice, the first time to 53 bits, which
// cannot put one of two such short numbers on a tie.
template <class Rules> void test_arithmetic(void **) {
    uint64_t seed = 1;
    for (int i = 0; i < 300000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint16_t first = static_cast<uint16_t>(seed >> 48);
        // Every other pair has exponents close enough for sums to round.
        const uint16_t second = static_cast<uint16_t>(i % 2 ? seed >> 32 : first ^ (seed >> 32 & 0x83ff));
        const auto a = Rules::from_bits(first), b = Rules::from_bits(second);
        const auto c = Rules::from_bits(static_cast<uint16_t>(seed >> 16));
        const double x = value_of<Rules>(first), y = value_of<Rules>(second);
        const double z = value_of<Rules>(Rules::bits(c));
        assert_is<Rules>(a + b, rounded<Rules>(x + y));
        assert_is<Rules>(__hsub(a, b), rounded<Rules>(x - y));
        assert_is<Rules>(a * b, rounded<Rules>(x * y));
        assert_is<Rules>(a / b, rounded<Rules>(x / y));
        if (x * y + z - z == x * y && x * y + z - x * y == z) // the sum is exact, too
            assert_is<Rules>(__hfma(a, b, c), rounded<Rules>(x * y + z));
        assert_int_equal(a < b, x < y);
        assert_int_equal(a >= b, x >= y);
        assert_int_equal(a == b, x == y);
        assert_int_equal(a != b, x != y);
        assert_int_equal(__hisnan(a), std::isnan(x));
        if (std::isnan(x) && std::isnan(y)) {
            assert_is<Rules>(__hmax(a, b), NAN);
        } else if (x != y || std::signbit(x) == std::signbit(y)) {
            assert_is<Rules>(__hmax(a, b), std::fmax(x, y));
            assert_is<Rules>(__hmin(a, b), std::fmin(x, y));
        }
    }
}

// A product on a tie, and an addend that is far below a double's last bit: rounded once, it decides.
template <class Rules> void test_fused_tie(void **) {
    using type = typename Rules::type;
    const double unit = std::ldexp(1, -Rules::mantissa_bits), tie = 1.5 * (1 + unit);
    const double tiny = std::ldexp(1, 1 - Rules::bias);
    assert_is<Rules>(__hfma(type(1.5), type(1 + unit), type(tiny)), 1.5 + 2 * unit);
    assert_is<Rules>(__hfma(type(1.5), type(1 + unit), type(-tiny)), 1.5 + unit);
    assert_is<Rules>(__hfma(type(-1.5), type(1 + unit), type(tiny)), -(1.5 + unit));
    assert_is<Rules>(__hfma(type(1.5), type(1 + unit), type(0.0)), rounded<Rules>(tie));
}

// What kernels may count on, as with the toolkit's types: the size, that arrays of them in shared memory run
// no constructor, that registers of two hold the low element in the low half.
template <class T, class Pair> void check_type() {
    static_assert(sizeof(T) == 2 && alignof(T) == 2 && sizeof(Pair) == 4 && alignof(Pair) == 4, "");
    static_assert(std::is_trivial<T>::value && std::is_trivial<Pair>::value, "");
    static_assert(std::is_standard_layout<T>::value && std::is_standard_layout<Pair>::value, "");
}

template <class Pair> void assert_halves(Pair pair, double low, double high) {
    const float got_low = __low2float(pair), got_high = __high2float(pair);
    assert_true(static_cast<double>(got_low) == low && static_cast<double>(got_high) == high);
    assert_true(static_cast<double>(float(pair.x)) == low && static_cast<double>(float(pair.y)) == high);
}

void test_pairs(void **) {
    check_type<__nv_bfloat16, __nv_bfloat162>();
    check_type<__half, __half2>();
    const __half2 h = __floats2half2_rn(1.5f, -2.25f);
    assert_halves(h, 1.5, -2.25);
    uint32_t bits;
    std::memcpy(&bits, &h, sizeof bits);
    assert_int_equal(bits, 0xc0803e00u);
    assert_halves(__float22half2_rn(__half22float2(h)), 1.5, -2.25);
    assert_halves(__halves2half2(__high2half(h), __low2half(h)), -2.25, 1.5);
    assert_halves(__hfma2(h, __float2half2_rn(2), __half2half2(__float2half(1))), 4, -3.5);
    assert_halves(__hadd2(h, h) - __hmul2(h, h), 0.75, -9.5625);

    const __nv_bfloat162 b = __floats2bfloat162_rn(1.5f, -2.25f);
    assert_halves(b, 1.5, -2.25);
    std::memcpy(&bits, &b, sizeof bits);
    assert_int_equal(bits, 0xc0103fc0u);
    assert_halves(__float22bfloat162_rn(__bfloat1622float2(b)), 1.5, -2.25);
    assert_halves(__halves2bfloat162(__high2bfloat16(b), __low2bfloat16(b)), -2.25, 1.5);
    assert_halves(__hfma2(b, __float2bfloat162_rn(2), __bfloat162bfloat162(__float2bfloat16(1))), 4, -3.5);
    assert_halves(__hsub2(b + b, b), 1.5, -2.25);
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
        cmocka_unit_test(test_doubles<bfloat16_rules>),
        cmocka_unit_test(test_doubles<half_rules>),
        cmocka_unit_test(test_arithmetic<bfloat16_rules>),
        cmocka_unit_test(test_arithmetic<half_rules>),
        cmocka_unit_test(test_fused_tie<bfloat16_rules>),
        cmocka_unit_test(test_fused_tie<half_rules>),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
