// Blocks of GGML with the bytes that a file has. Each format is a struct with
//   elements, bytes   of a block;
//   group             how many elements share a scale;
//   zero              what codes are above the numbers that they stand for;
//   minima            whether codes are above a minimum, then `value = code * scale + min`, else `(code - zero) * scale`;
//   is_signed         whether codes are signed bytes;
//   eight(block, p)   the codes of elements 8p .. 8p + 7 of a block, a byte each.
// Blocks begin where their length puts them: at multiples of 2, 4 or 16 bytes, and are read by words that are aligned so.

struct Eight {
    u32 codes[2];
    f32 scale, min;
};

INLINE u32 bytes2(const u8* at) { return *(const u16*)at; }
INLINE u32 bytes4(const u8* at) { return *(const u32*)at; }
// Four bytes at a multiple of two.
INLINE u32 bytes22(const u8* at) { return bytes2(at) | bytes2(at + 2) << 16; }
INLINE f32 half_at(const u8* at) { return f16_to_float((u16)bytes2(at)); }

// Four bits as the lowest bits of four bytes.
INLINE u32 spread(u32 bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

INLINE void nibbles(u32 word, u32& low, u32& high) {
    low = word & 0x0f0f0f0f;
    high = word >> 4 & 0x0f0f0f0f;
}

// ---- Blocks of 32 ----

struct q4_0 {
    static const int elements = 32, bytes = 18, zero = 8, group = 32;
    static const bool minima = false, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        const u8* at = block + 2 + 8 * (p % 2);
        int shift = p / 2 * 4;
        return {{bytes22(at) >> shift & 0x0f0f0f0f, bytes22(at + 4) >> shift & 0x0f0f0f0f}, half_at(block), 0};
    }
};

struct q4_1 {
    static const int elements = 32, bytes = 20, zero = 0, group = 32;
    static const bool minima = true, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        const u8* at = block + 4 + 8 * (p % 2);
        int shift = p / 2 * 4;
        return {{bytes4(at) >> shift & 0x0f0f0f0f, bytes4(at + 4) >> shift & 0x0f0f0f0f}, half_at(block), half_at(block + 2)};
    }
};

struct q5_0 {
    static const int elements = 32, bytes = 22, zero = 16, group = 32;
    static const bool minima = false, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        u32 fifth = bytes22(block + 2) >> 8 * p;
        const u8* at = block + 6 + 8 * (p % 2);
        int shift = p / 2 * 4;
        return {{bytes22(at) >> shift & 0x0f0f0f0f | spread(fifth) << 4,
                 bytes22(at + 4) >> shift & 0x0f0f0f0f | spread(fifth >> 4) << 4},
                half_at(block),
                0};
    }
};

struct q5_1 {
    static const int elements = 32, bytes = 24, zero = 0, group = 32;
    static const bool minima = true, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        u32 fifth = bytes4(block + 4) >> 8 * p;
        const u8* at = block + 8 + 8 * (p % 2);
        int shift = p / 2 * 4;
        return {{bytes4(at) >> shift & 0x0f0f0f0f | spread(fifth) << 4,
                 bytes4(at + 4) >> shift & 0x0f0f0f0f | spread(fifth >> 4) << 4},
                half_at(block),
                half_at(block + 2)};
    }
};

struct q8_0 {
    static const int elements = 32, bytes = 34, zero = 0, group = 32;
    static const bool minima = false, is_signed = true;
    INLINE static Eight eight(const u8* block, int p) {
        const u8* at = block + 2 + 8 * p;
        return {{bytes22(at), bytes22(at + 4)}, half_at(block), 0};
    }
};

struct q8_1 {
    static const int elements = 32, bytes = 36, zero = 0, group = 32;
    static const bool minima = false, is_signed = true;
    INLINE static Eight eight(const u8* block, int p) {
        const u8* at = block + 4 + 8 * p;
        return {{bytes4(at), bytes4(at + 4)}, half_at(block), 0};
    }
};

// ---- Blocks of 256: eight runs of 32 elements; a byte of codes has bits of runs that are 32 elements apart ----

struct q2_k {
    static const int elements = 256, bytes = 84, zero = 0, group = 16;
    static const bool minima = true, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        int run = p / 4;
        const u8* at = block + 16 + 32 * (run / 4) + 8 * (p % 4);
        int shift = 2 * (run % 4);
        u32 scales = block[p / 2];
        return {{bytes4(at) >> shift & 0x03030303, bytes4(at + 4) >> shift & 0x03030303},
                half_at(block + 80) * (f32)(scales & 15),
                -(half_at(block + 82) * (f32)(scales >> 4))};
    }
};

// Scale j of the sixteen of 6 bits.
INLINE i32 q3_k_scale(const u8* scales, int j) {
    return (i32)((u32)scales[j % 8] >> 4 * (j / 8) & 15 | ((u32)scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

struct q3_k {
    static const int elements = 256, bytes = 110, zero = 4, group = 16;
    static const bool minima = false, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        int run = p / 4;
        const u8* third = block + 8 * (p % 4);
        const u8* at = block + 32 + 32 * (run / 4) + 8 * (p % 4);
        int shift = 2 * (run % 4);
        return {{bytes22(at) >> shift & 0x03030303 | (bytes22(third) >> run & 0x01010101) << 2,
                 bytes22(at + 4) >> shift & 0x03030303 | (bytes22(third + 4) >> run & 0x01010101) << 2},
                half_at(block + 108) * (f32)q3_k_scale(block + 96, p / 2),
                0};
    }
};

// Scale and minimum j of the eight of 6 bits, from the three words that hold them.
INLINE void q4_k_scales(u32 first, u32 second, u32 third, int j, u32& scale, u32& min) {
    int shift = j % 4 * 8;
    u32 a = first >> shift, b = second >> shift, c = third >> shift;
    if (j < 4) {
        scale = a & 63;
        min = b & 63;
    } else {
        scale = c & 15 | (a & 0xc0) >> 2;
        min = c >> 4 & 15 | (b & 0xc0) >> 2;
    }
}

INLINE void q4_k_scales(const u8* block, int j, f32& scale, f32& min) {
    u32 whole, part;
    q4_k_scales(bytes4(block + 4), bytes4(block + 8), bytes4(block + 12), j, whole, part);
    scale = half_at(block) * (f32)whole;
    min = -(half_at(block + 2) * (f32)part);
}

struct q4_k {
    static const int elements = 256, bytes = 144, zero = 0, group = 32;
    static const bool minima = true, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        int run = p / 4;
        const u8* at = block + 16 + 32 * (run / 2) + 8 * (p % 4);
        int shift = 4 * (run % 2);
        Eight x = {{bytes4(at) >> shift & 0x0f0f0f0f, bytes4(at + 4) >> shift & 0x0f0f0f0f}, 0, 0};
        q4_k_scales(block, run, x.scale, x.min);
        return x;
    }
};

struct q5_k {
    static const int elements = 256, bytes = 176, zero = 0, group = 32;
    static const bool minima = true, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        int run = p / 4;
        const u8* fifth = block + 16 + 8 * (p % 4);
        const u8* at = block + 48 + 32 * (run / 2) + 8 * (p % 4);
        int shift = 4 * (run % 2);
        Eight x = {{bytes4(at) >> shift & 0x0f0f0f0f | (bytes4(fifth) >> run & 0x01010101) << 4,
                    bytes4(at + 4) >> shift & 0x0f0f0f0f | (bytes4(fifth + 4) >> run & 0x01010101) << 4},
                   0,
                   0};
        q4_k_scales(block, run, x.scale, x.min);
        return x;
    }
};

struct q6_k {
    static const int elements = 256, bytes = 210, zero = 32, group = 16;
    static const bool minima = false, is_signed = false;
    INLINE static Eight eight(const u8* block, int p) {
        int run = p / 4, half = run / 4, part = run % 4;
        const u8* low = block + 64 * half + 32 * (part % 2) + 8 * (p % 4);
        const u8* high = block + 128 + 32 * half + 8 * (p % 4);
        int shift = 4 * (part / 2), high_shift = 2 * part;
        return {{bytes22(low) >> shift & 0x0f0f0f0f | (bytes22(high) >> high_shift & 0x03030303) << 4,
                 bytes22(low + 4) >> shift & 0x0f0f0f0f | (bytes22(high + 4) >> high_shift & 0x03030303) << 4},
                half_at(block + 208) * (f32)(i8)block[192 + p / 2],
                0};
    }
};

struct q8_k {
    static const int elements = 256, bytes = 292, zero = 0, group = 32;
    static const bool minima = false, is_signed = true;
    INLINE static Eight eight(const u8* block, int p) {
        const u8* at = block + 4 + 8 * p;
        return {{bytes4(at), bytes4(at + 4)}, __uint_as_float(bytes4(block)), 0};
    }
};

// Takes `zero` from every byte, all of which are below 128.
template <class F> INLINE u32 centered(u32 word) {
    if (F::zero == 0) return word;
    return ((word | 0x80808080) - F::zero * 0x01010101u) ^ 0x80808080;
}

// ---- Numbers ----

// What a thread decodes at once: eight elements of a block, or a float.
template <class F> struct Decode {
    static const int count = 8;
    INLINE static void at(const u8* blocks, u64 i, f32 (&x)[8]) {
        const int parts = F::elements / 8;
        Eight eight = F::eight(blocks + i / parts * F::bytes, (int)(i % parts));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            u32 byte = eight.codes[j / 4] >> 8 * (j % 4) & 255;
            f32 code = F::is_signed ? (f32)(i8)byte : (f32)((i32)byte - F::zero);
            x[j] = F::minima ? code * eight.scale + eight.min : code * eight.scale;
        }
    }
};
template <class T> struct DecodeFloat {
    static const int count = 1;
    INLINE static void at(const u8* blocks, u64 i, f32 (&x)[1]) { x[0] = value(((const T*)blocks)[i]); }
};
template <> struct Decode<f32> : DecodeFloat<f32> {};
template <> struct Decode<f16> : DecodeFloat<f16> {};
template <> struct Decode<bf16> : DecodeFloat<bf16> {};
