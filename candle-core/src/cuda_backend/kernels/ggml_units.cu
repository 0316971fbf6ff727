// What a lane of a warp reads of a row of blocks at once: a unit. 32 units are a chunk, a whole number of blocks. Unit<F> has
//   parts, words   a unit is `parts` runs of 4 * words elements, each in one group of 32 elements of the row;
//   elements       all of it;
//   factors        whether each part has a whole factor, else it is 1;
//   at(lane, p)    the first element of a part, from the chunk on;
//   read(chunk, lane, raw)     loads the words that it takes, and does nothing else, so that many loads are under way;
//   decode(raw, chunk, lane)   makes of them
//     codes          as bytes, F::zero above the numbers that they stand for;
//     factor, d      what numbers are multiplied with: a part's and the unit's;
//     minimum, dmin  what is added to them, as their product, where F::minima.
// Units are shaped for loads: neighbouring lanes read neighbouring bytes, by the widest words that the blocks' places allow.

template <int PARTS, int WORDS, bool FACTORS, int RAW> struct UnitOf {
    static const int parts = PARTS, words = WORDS, elements = 4 * PARTS * WORDS;
    static const bool factors = FACTORS;
    typedef u32 Raw[RAW];
    u32 codes[PARTS][WORDS];
    i32 factor[PARTS], minimum[PARTS];
    f32 d, dmin;
};

template <class F> struct Unit;

INLINE f32 low_half(u32 word) { return f16_to_float((u16)word); }
INLINE f32 high_half(u32 word) { return f16_to_float((u16)(word >> 16)); }

INLINE u32 odd_place(const u8* at) { return (u32)(u64)at & 2; }
// N aligned words, the first with the bytes from `at` on, which is a multiple of two.
template <int N> INLINE void read_words(const u8* at, u32* raw) {
    const u32* aligned = (const u32*)(at - odd_place(at));
#pragma unroll
    for (int i = 0; i < N; i++) raw[i] = aligned[i];
}
// N words of one more.
template <int N> INLINE void shifted(const u32* raw, u32 select, u32 (&words)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) words[i] = __byte_perm(raw[i], raw[i + 1], select);
}
// Selects of two words the bytes from an odd place on, or from two behind an even one.
INLINE u32 select_at(u32 odd) { return odd ? 0x5432 : 0x3210; }
INLINE u32 select_behind(u32 odd) { return odd ? 0x7654 : 0x5432; }

// ---- Blocks of 32: a lane has a block of nibbles, or a quarter of one of bytes ----

template <int RAW> struct Nibbles : UnitOf<1, 8, false, RAW> {
    INLINE static int at(int lane, int) { return 32 * lane; }
    INLINE void split(const u32* words) {
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(words[i], this->codes[0][i], this->codes[0][4 + i]);
    }
    INLINE void add_fifths(u32 fifths) {
#pragma unroll
        for (int i = 0; i < 8; i++) this->codes[0][i] |= spread(fifths >> 4 * i) << 4;
    }
    // Two f16: scale and minimum.
    INLINE void scales(u32 word) {
        this->d = low_half(word);
        this->dmin = high_half(word);
        this->minimum[0] = 1;
    }
};

template <> struct Unit<q4_0> : Nibbles<5> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) { read_words<5>(chunk + 18 * lane, raw); }
    INLINE void decode(const Raw& raw, const u8* chunk, int lane) {
        u32 odd = odd_place(chunk + 18 * lane), words[4];
        d = odd ? high_half(raw[0]) : low_half(raw[0]);
        shifted(raw, select_behind(odd), words);
        split(words);
    }
};

template <> struct Unit<q4_1> : Nibbles<5> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) { read_words<5>(chunk + 20 * lane, raw); }
    INLINE void decode(const Raw& raw, const u8*, int) {
        scales(raw[0]);
        split(raw + 1);
    }
};

template <> struct Unit<q5_0> : Nibbles<6> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) { read_words<6>(chunk + 22 * lane, raw); }
    INLINE void decode(const Raw& raw, const u8* chunk, int lane) {
        u32 odd = odd_place(chunk + 22 * lane), words[5];
        d = odd ? high_half(raw[0]) : low_half(raw[0]);
        shifted(raw, select_behind(odd), words);
        split(words + 1);
        add_fifths(words[0]);
    }
};

template <> struct Unit<q5_1> : Nibbles<6> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            Pack<u32, 2> pair = load<2>((const u32*)(chunk + 24 * lane) + 2 * i);
            raw[2 * i] = pair.at[0], raw[2 * i + 1] = pair.at[1];
        }
    }
    INLINE void decode(const Raw& raw, const u8*, int) {
        scales(raw[0]);
        split(raw + 2);
        add_fifths(raw[1]);
    }
};

template <int RAW> struct Bytes : UnitOf<1, 2, false, RAW> {
    INLINE static int at(int lane, int) { return 8 * lane; }
};

template <> struct Unit<q8_0> : Bytes<4> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 34 * (lane / 4);
        raw[3] = bytes2(block);
        read_words<3>(block + 2 + 8 * (lane % 4), raw);
    }
    INLINE void decode(const Raw& raw, const u8* chunk, int lane) {
        d = low_half(raw[3]);
        shifted(raw, select_at(odd_place(chunk + 34 * (lane / 4) + 2)), codes[0]);
    }
};

template <> struct Unit<q8_1> : Bytes<3> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 36 * (lane / 4);
        raw[2] = bytes2(block);
        read_words<2>(block + 4 + 8 * (lane % 4), raw);
    }
    INLINE void decode(const Raw& raw, const u8*, int) {
        d = low_half(raw[2]);
        codes[0][0] = raw[0], codes[0][1] = raw[1];
    }
};

template <> struct Unit<q8_k> : Bytes<3> {
    INLINE static void read(const u8* block, int lane, Raw& raw) {
        raw[2] = bytes4(block);
        read_words<2>(block + 4 + 8 * lane, raw);
    }
    INLINE void decode(const Raw& raw, const u8*, int) {
        d = __uint_as_float(raw[2]);
        codes[0][0] = raw[0], codes[0][1] = raw[1];
    }
};

// ---- Blocks of 256 ----

// Eight bytes of codes of two bits: four runs.
template <int RAW> struct TwoBits : UnitOf<4, 2, true, RAW> {
    INLINE static int at(int lane, int part) { return 128 * (lane / 4) + 32 * part + 8 * (lane % 4); }
};

template <> struct Unit<q2_k> : TwoBits<5> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 84 * (lane / 8);
        int half = lane / 4 % 2;
        read_words<2>(block + 16 + 32 * half + 8 * (lane % 4), raw);
        read_words<2>(block + 8 * half, raw + 2);
        raw[4] = bytes4(block + 80);
    }
    INLINE void decode(const Raw& words, const u8*, int lane) {
        d = low_half(words[4]);
        dmin = -high_half(words[4]);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 scales = words[2 + part / 2] >> (16 * (part % 2) + 8 * (lane % 4 / 2));
            factor[part] = scales & 15;
            minimum[part] = scales >> 4 & 15;
#pragma unroll
            for (int i = 0; i < 2; i++) codes[part][i] = words[i] >> 2 * part & 0x03030303;
        }
    }
};

template <> struct Unit<q3_k> : TwoBits<11> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 110 * (lane / 8);
        read_words<3>(block + 32 + 32 * (lane / 4 % 2) + 8 * (lane % 4), raw);
        read_words<3>(block + 8 * (lane % 4), raw + 3);
        read_words<4>(block + 96, raw + 6);
        raw[10] = bytes2(block + 108);
    }
    INLINE void decode(const Raw& raw, const u8* chunk, int lane) {
        int half = lane / 4 % 2, eighth = lane % 4;
        u32 select = select_at(odd_place(chunk + 110 * (lane / 8))), words[2], thirds[2], scales[3];
        shifted(raw, select, words);
        shifted(raw + 3, select, thirds);
        shifted(raw + 6, select, scales);
        d = low_half(raw[10]);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            // Scale 8 half + j: a nibble of byte j, and two bits of byte 8 + j % 4.
            int j = 2 * part + eighth / 2;
            u32 low = scales[part / 2] >> (8 * (j % 4) + 4 * half) & 15;
            u32 high = scales[2] >> (8 * (j % 4) + 4 * half + 2 * (part / 2)) & 3;
            factor[part] = (i32)(low | high << 4) - 32;
            for (int i = 0; i < 2; i++) {
                codes[part][i] = words[i] >> 2 * part & 0x03030303 | (thirds[i] >> (4 * half + part) & 0x01010101) << 2;
            }
        }
    }
};

// Sixteen bytes of nibbles: sixteen elements each of two neighbouring runs.
template <int RAW> struct Pairs : UnitOf<2, 4, true, RAW> {
    INLINE static int at(int lane, int part) { return 64 * (lane / 2) + 32 * part + 16 * (lane % 2); }
    INLINE void split(const u32* words) {
#pragma unroll
        for (int i = 0; i < 4; i++) nibbles(words[i], this->codes[0][i], this->codes[1][i]);
    }
    INLINE static void read_four(const u8* at, u32* raw) {
        Pack<u32, 4> four = load<4>((const u32*)at);
#pragma unroll
        for (int i = 0; i < 4; i++) raw[i] = four.at[i];
    }
    // Scales and minima of runs 2 quarter and the next, from a block's first sixteen bytes: halves of each word of them.
    INLINE void scales(const u32* head, int quarter) {
        this->d = low_half(head[0]);
        this->dmin = -high_half(head[0]);
        int shift = quarter % 2 * 16;
        u32 a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
        u32 whole = quarter < 2 ? a & 0x3f3f : c & 0x0f0f | (a & 0xc0c0) >> 2;
        u32 below = quarter < 2 ? b & 0x3f3f : c >> 4 & 0x0f0f | (b & 0xc0c0) >> 2;
        this->factor[0] = whole & 255, this->factor[1] = whole >> 8;
        this->minimum[0] = below & 255, this->minimum[1] = below >> 8;
    }
};

template <> struct Unit<q4_k> : Pairs<8> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 144 * (lane / 8);
        read_four(block, raw);
        read_four(block + 16 + 16 * (lane % 8), raw + 4);
    }
    INLINE void decode(const Raw& raw, const u8*, int lane) {
        scales(raw, lane % 8 / 2);
        split(raw + 4);
    }
};

template <> struct Unit<q5_k> : Pairs<12> {
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 176 * (lane / 8);
        read_four(block, raw);
        read_four(block + 16 + 16 * (lane % 2), raw + 4);
        read_four(block + 48 + 16 * (lane % 8), raw + 8);
    }
    INLINE void decode(const Raw& raw, const u8*, int lane) {
        scales(raw, lane % 8 / 2);
        split(raw + 8);
        int run = lane % 8 / 2 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bits = raw[4 + i] >> run;
            codes[0][i] |= bits << 4 & 0x10101010;
            codes[1][i] |= bits << 3 & 0x10101010;
        }
    }
};

// Eight bytes of nibbles: eight elements each of two runs, 64 elements apart.
template <> struct Unit<q6_k> : UnitOf<2, 2, true, 9> {
    INLINE static int at(int lane, int part) { return 128 * (lane / 8) + 64 * part + 8 * (lane % 8); }
    INLINE static void read(const u8* chunk, int lane, Raw& raw) {
        const u8* block = chunk + 210 * (lane / 16);
        int half = lane / 8 % 2, eighth = lane % 8;
        read_words<3>(block + 64 * half + 8 * eighth, raw);
        read_words<3>(block + 128 + 32 * half + 8 * (eighth % 4), raw + 3);
        const i8* scales = (const i8*)block + 192 + 8 * half + eighth / 2;
        raw[6] = (i32)scales[0], raw[7] = (i32)scales[4];
        raw[8] = bytes2(block + 208);
    }
    INLINE void decode(const Raw& raw, const u8* chunk, int lane) {
        u32 select = select_at(odd_place(chunk + 210 * (lane / 16))), low[2], high[2];
        shifted(raw, select, low);
        shifted(raw + 3, select, high);
        factor[0] = (i32)raw[6], factor[1] = (i32)raw[7];
        d = low_half(raw[8]);
        int shift = lane % 8 / 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 bits = high[i] >> shift;
            nibbles(low[i], codes[0][i], codes[1][i]);
            codes[0][i] |= bits << 4 & 0x30303030;
            codes[1][i] |= bits & 0x30303030;
        }
    }
};
