// What a lane reads of a row of blocks at once: a unit. Unit<F> has
//   parts, words   a unit is `parts` runs of 4 * words elements, each in one group of 32 elements of the row;
//   elements       all of it;
//   offsets        whether numbers are `scale * code + offset` and not `scale * code`;
//   at(u, part)    the first element of a part of unit u of a row;
//   codes, scale, offset, of each part, filled by load(row, u).
// Units are shaped for loads: neighbouring lanes read neighbouring bytes, by the widest words that the blocks' places allow.

template <int PARTS, int WORDS> struct UnitOf {
    static const int parts = PARTS, words = WORDS, elements = 4 * PARTS * WORDS;
    u32 codes[PARTS][WORDS];
    f32 scale[PARTS], offset[PARTS];
};

template <class F> struct Unit;

// Scale and first byte of codes of a block of N words of codes behind an f16, which begins at a multiple of two.
template <int N> INLINE f32 half_and_words(const u8* block, u32 (&words)[N]) {
    u32 odd = (u32)(u64)block & 2;
    const u32* aligned = (const u32*)(block - odd);
    u32 select = odd ? 0x7654 : 0x5432;
    u32 word = aligned[0];
    f32 scale = f16_to_float((u16)(odd ? word >> 16 : word));
#pragma unroll
    for (int i = 0; i < N; i++) {
        u32 next = aligned[i + 1];
        words[i] = __byte_perm(word, next, select);
        word = next;
    }
    return scale;
}

template <> struct Unit<q4_0> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 32 * u + 16 * part; }
    INLINE void load(const u8* row, u64 u) {
        u32 words[4];
        scale[0] = scale[1] = half_and_words(row + 18 * u, words);
        offset[0] = offset[1] = -8 * scale[0];
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(words[i], codes[0][i], codes[1][i]);
    }
};

template <> struct Unit<q4_1> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 32 * u + 16 * part; }
    INLINE void load(const u8* row, u64 u) {
        const u32* block = (const u32*)(row + 20 * u);
        u32 first = block[0];
        scale[0] = scale[1] = f16_to_float((u16)first);
        offset[0] = offset[1] = f16_to_float((u16)(first >> 16));
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(block[1 + i], codes[0][i], codes[1][i]);
    }
};

INLINE void with_fifths(u32 fifths, u32 (&codes)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i / 4][i % 4] |= spread(fifths >> 4 * i) << 4;
}

template <> struct Unit<q5_0> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 32 * u + 16 * part; }
    INLINE void load(const u8* row, u64 u) {
        u32 words[5];
        scale[0] = scale[1] = half_and_words(row + 22 * u, words);
        offset[0] = offset[1] = -16 * scale[0];
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(words[1 + i], codes[0][i], codes[1][i]);
        with_fifths(words[0], codes);
    }
};

template <> struct Unit<q5_1> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 32 * u + 16 * part; }
    INLINE void load(const u8* row, u64 u) {
        Pack<u32, 2> pairs[3];
#pragma unroll
        for (int i = 0; i < 3; i++) pairs[i] = ::load<2>((const u32*)(row + 24 * u) + 2 * i);
        scale[0] = scale[1] = f16_to_float((u16)pairs[0].at[0]);
        offset[0] = offset[1] = f16_to_float((u16)(pairs[0].at[0] >> 16));
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(pairs[1 + i / 2].at[i % 2], codes[0][i], codes[1][i]);
        with_fifths(pairs[0].at[1], codes);
    }
};

// A quarter of a block.
template <> struct Unit<q8_0> : UnitOf<1, 2> {
    static const bool offsets = false;
    INLINE static u64 at(u64 u, int) { return 8 * u; }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 34 * (u / 4);
        scale[0] = half_at(block);
        words_at_2(block + 2 + 8 * (u % 4), codes[0]);
    }
};

template <> struct Unit<q8_1> : UnitOf<1, 2> {
    static const bool offsets = false;
    INLINE static u64 at(u64 u, int) { return 8 * u; }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 36 * (u / 4);
        scale[0] = half_at(block);
        codes[0][0] = bytes4(block + 4 + 8 * (u % 4));
        codes[0][1] = bytes4(block + 8 + 8 * (u % 4));
    }
};

template <> struct Unit<q8_k> : UnitOf<1, 2> {
    static const bool offsets = false;
    INLINE static u64 at(u64 u, int) { return 8 * u; }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 292 * (u / 32);
        scale[0] = __uint_as_float(bytes4(block));
        codes[0][0] = bytes4(block + 4 + 8 * (u % 32));
        codes[0][1] = bytes4(block + 8 + 8 * (u % 32));
    }
};

// Eight bytes of codes of two bits: four runs.
template <> struct Unit<q2_k> : UnitOf<4, 2> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 128 * (u / 4) + 32 * part + 8 * (u % 4); }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 84 * (u / 8);
        int half = u / 4 % 2, eighth = u % 4;
        const u8* at = block + 16 + 32 * half + 8 * eighth;
        u32 words[2] = {bytes4(at), bytes4(at + 4)}, factors = bytes4(block + 80);
        f32 d = f16_to_float((u16)factors), dmin = f16_to_float((u16)(factors >> 16));
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 scales = bytes4(block + 8 * half + 4 * (part / 2)) >> (16 * (part % 2) + 8 * (eighth / 2));
            scale[part] = d * (f32)(scales & 15);
            offset[part] = -dmin * (f32)(scales >> 4 & 15);
            for (int i = 0; i < 2; i++) codes[part][i] = words[i] >> 2 * part & 0x03030303;
        }
    }
};

template <> struct Unit<q3_k> : UnitOf<4, 2> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 128 * (u / 4) + 32 * part + 8 * (u % 4); }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 110 * (u / 8);
        int half = u / 4 % 2, eighth = u % 4;
        u32 words[2], thirds[2], scales[3];
        words_at_2(block + 32 + 32 * half + 8 * eighth, words);
        words_at_2(block + 8 * eighth, thirds);
        words_at_2(block + 96, scales);
        f32 d = half_at(block + 108);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            // Scale 8 half + j: a nibble of byte j, and two bits of byte 8 + j % 4.
            int j = 2 * part + eighth / 2;
            u32 low = scales[part / 2] >> (8 * (j % 4) + 4 * half) & 15;
            u32 high = scales[2] >> (8 * (j % 4) + 4 * half + 2 * (part / 2)) & 3;
            scale[part] = d * (f32)((i32)(low | high << 4) - 32);
            offset[part] = -4 * scale[part];
            for (int i = 0; i < 2; i++) {
                codes[part][i] = words[i] >> 2 * part & 0x03030303 | (thirds[i] >> (4 * half + part) & 0x01010101) << 2;
            }
        }
    }
};

// Sixteen bytes of nibbles: sixteen elements each of two neighbouring runs.
template <> struct Unit<q4_k> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 64 * (u / 2) + 32 * part + 16 * (u % 2); }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 144 * (u / 8);
        int eighth = u % 8;
        Pack<u32, 4> head = ::load<4>((const u32*)block), four = ::load<4>((const u32*)(block + 16 + 16 * eighth));
        scales(head, eighth / 2, *this);
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(four.at[i], codes[0][i], codes[1][i]);
    }
    // Of runs 2 quarter and the next.
    template <class U> INLINE static void scales(const Pack<u32, 4>& head, int quarter, U& unit) {
        f32 d = f16_to_float((u16)head.at[0]), dmin = f16_to_float((u16)(head.at[0] >> 16));
#pragma unroll
        for (int part = 0; part < 2; part++) {
            u32 whole, below;
            q4_k_scales(head.at[1], head.at[2], head.at[3], 2 * quarter + part, whole, below);
            unit.scale[part] = d * (f32)whole;
            unit.offset[part] = -dmin * (f32)below;
        }
    }
};

template <> struct Unit<q5_k> : UnitOf<2, 4> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return Unit<q4_k>::at(u, part); }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 176 * (u / 8);
        int eighth = u % 8;
        Pack<u32, 4> head = ::load<4>((const u32*)block), fifths = ::load<4>((const u32*)(block + 16 + 16 * (eighth % 2))),
                     four = ::load<4>((const u32*)(block + 48 + 16 * eighth));
        Unit<q4_k>::scales(head, eighth / 2, *this);
        int run = eighth / 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            nibbles(four.at[i], codes[0][i], codes[1][i]);
            codes[0][i] |= (fifths.at[i] >> run & 0x01010101) << 4;
            codes[1][i] |= (fifths.at[i] >> (run + 1) & 0x01010101) << 4;
        }
    }
};

// Eight bytes of nibbles: eight elements each of two runs, 64 elements apart.
template <> struct Unit<q6_k> : UnitOf<2, 2> {
    static const bool offsets = true;
    INLINE static u64 at(u64 u, int part) { return 128 * (u / 8) + 64 * part + 8 * (u % 8); }
    INLINE void load(const u8* row, u64 u) {
        const u8* block = row + 210 * (u / 16);
        int half = u / 8 % 2, eighth = u % 8;
        u32 low[2], high[2];
        words_at_2(block + 64 * half + 8 * eighth, low);
        words_at_2(block + 128 + 32 * half + 8 * (eighth % 4), high);
        f32 d = half_at(block + 208);
        const u8* scales = block + 192 + 8 * half + eighth / 2;
        int shift = eighth / 4 * 2;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            scale[part] = d * (f32)(i8)scales[4 * part];
            offset[part] = -32 * scale[part];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            nibbles(low[i], codes[0][i], codes[1][i]);
            codes[0][i] |= (high[i] >> shift & 0x03030303) << 4;
            codes[1][i] |= (high[i] >> (shift + 4) & 0x03030303) << 4;
        }
    }
};
