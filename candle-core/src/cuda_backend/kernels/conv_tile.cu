// A convolution as a product of tiles: the left side has a row for each channel of the result with the taps' weights, the right side a
// column for each element of the result with the elements under the taps. Neither is stored: an element's offset is computed while its tile
// is loaded, 16 bytes of channels at a time, which are adjacent in both operands.
//
// T: the dtype; MATRIX: the function of matrix instructions that multiplies tiles, or nothing for sums of products in registers; BM, BN:
// rows and columns of a block's tile; WARPS_M: warps that share its rows; STAGES: tiles in flight; T_H, T_W: taps; SPLITS: parts of the
// sum, each computed by a separate block and written to `dst` in the type of sums; VEC: elements of the result per store.
//
// A transposed convolution of stride s is s * s plain ones, one for each remainder of the result's rows and columns: the taps that reach
// those have a constant stride, and so do the elements that they read.

template <class A> struct Sum { typedef A type; };
template <> struct Sum<i16> { typedef u32 type; };
template <> struct Sum<i32> { typedef u32 type; };
template <> struct Sum<i64> { typedef u64 type; };
template <> struct Sum<u8> { typedef u32 type; };
typedef typename Sum<compute<T>>::type A;
#if SPLITS > 1
typedef A O;
INLINE O stored(A sum) { return sum; }
#else
typedef T O;
INLINE O stored(A sum) { return as<T>((compute<T>)sum); }
#endif

// Along one axis: element q of the result reads q * step + tap * reach + base of `size` elements, and is written at q * apart.
struct Axis {
    i32 count, size, step, reach, base, apart;
};

struct Conv {
    // The input in elements: its offset, and strides over images, groups, rows and columns.
    u64 offset, batch, group, row, column;
    // The weights: strides over groups, channels of the result and taps.
    u64 w_offset, w_group, w_out, w_row, w_column;
    // Offset and strides of the result.
    u64 d_offset, d_batch, d_group, d_channel, d_row;
    // Stride between splits.
    u64 d_split;
    // Columns of the product; channels of the result in a group, and of the input.
    u32 n, m, c, groups;
    Axis y, x;
};

const int CHUNK = 16 / sizeof(T);      // elements of a copy
const int CHUNKS = 4;                  // copies of a row of a tile
const int BK = CHUNK * CHUNKS;
const int ROW = BK + CHUNK;            // elements per row: one extra copy keeps rows in different banks
const int ROWS_AT_ONCE = 256 / CHUNKS; // rows that the block copies at once

// The position of a thread's copy in the sum: a tap and a channel.
struct Place {
    i32 ty, tx;
    u32 c;

    INLINE Place(u32 k, u32 channels) {
        u32 tap = k / channels;
        c = k - tap * channels;
        ty = tap / T_W;
        tx = tap % T_W;
    }
    INLINE void advance(u32 channels) {
        c += BK;
        while (c >= channels) {
            c -= channels;
            if (++tx == T_W) tx = 0, ty++;
        }
    }
};

struct Column {
    u64 to;    // offset in the destination
    u64 from;  // offset of its image
    i32 y, x;  // the element of the first tap
};

INLINE Column column(const Conv& p, u32 n) {
    u32 width = p.x.count, rest = n / width, x = n - rest * width;
    u32 height = p.y.count, batch = rest / height, y = rest - batch * height;
    Column at;
    at.to = batch * p.d_batch + (u64)y * p.y.apart * p.d_row + (u64)x * p.x.apart;
    at.from = batch * p.batch;
    at.y = (i32)y * p.y.step + p.y.base;
    at.x = (i32)x * p.x.step + p.x.base;
    return at;
}

#ifdef MATRIX
// A warp's part: WM rows by WN columns, in tiles of 16 by 8.
const int WARPS_N = 8 / WARPS_M, WM = BM / WARPS_M, WN = BN / WARPS_N, MI = WM / 16, NI = WN / 8;

struct Sums {
    f32 at[MI][NI][4];

    INLINE void add(const T* left, const T* right) {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        left += (warp % WARPS_M * WM + lane % 16) * ROW + lane / 16 * 8;
        right += (warp / WARPS_M * WN + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            u32 a[MI][4], b[NI / 2][4];
#pragma unroll
            for (int i = 0; i < MI; i++) ldmatrix_x4(a[i], left + i * 16 * ROW + k);
#pragma unroll
            for (int j = 0; j < NI / 2; j++) ldmatrix_x4(b[j], right + j * 16 * ROW + k);
#pragma unroll
            for (int i = 0; i < MI; i++) {
#pragma unroll
                for (int j = 0; j < NI; j++) {
                    u32 pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                    MATRIX(at[i][j], a[i], pair);
                }
            }
        }
    }

    template <class F> INLINE void each(F f) const {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int row = warp % WARPS_M * WM + lane / 4, column = warp / WARPS_M * WN + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI; i++) {
#pragma unroll
            for (int j = 0; j < NI; j++) {
#pragma unroll
                for (int v = 0; v < 4; v++) f(row + i * 16 + v / 2 * 8, column + j * 8 + v % 2, at[i][j][v]);
            }
        }
    }
};
#else
// A thread's part: rows and columns 16 apart. LANES elements of the sum are loaded at once.
const int TM = BM / 16, TN = BN / 16, LANES = CHUNK < 4 ? CHUNK : 4;

struct Sums {
    A at[TM][TN];

    INLINE void add(const T* left, const T* right) {
        left += threadIdx.x / 16 * ROW;
        right += threadIdx.x % 16 * ROW;
#pragma unroll
        for (int k = 0; k < BK; k += LANES) {
            Pack<T, LANES> a[TM];
#pragma unroll
            for (int i = 0; i < TM; i++) a[i] = load<LANES>(left + i * 16 * ROW + k);
#pragma unroll
            for (int j = 0; j < TN; j++) {
                Pack<T, LANES> b = load<LANES>(right + j * 16 * ROW + k);
#pragma unroll
                for (int lane = 0; lane < LANES; lane++) {
                    A y = (A)value(b.at[lane]);
#pragma unroll
                    for (int i = 0; i < TM; i++) at[i][j] += (A)value(a[i].at[lane]) * y;
                }
            }
        }
    }

    template <class F> INLINE void each(F f) const {
        int row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll
        for (int i = 0; i < TM; i++) {
#pragma unroll
            for (int j = 0; j < TN; j++) f(row + i * 16, column + j * 16, at[i][j]);
        }
    }
};
#endif

KERNEL(conv_tile)(const T* src, const T* weights, O* dst, Conv p) {
    extern __shared__ uint4 shared[];
    __shared__ u64 places[BN];
    T* tiles = (T*)shared;
    u32 tiles_m = (p.m + BM - 1) / BM, tile = blockIdx.x;
    u32 first_m = tile % tiles_m * BM, first_n = tile / tiles_m * BN;
    u32 group = blockIdx.y % p.groups, split = blockIdx.y / p.groups;
    src += p.offset + group * p.group;
    weights += p.w_offset + group * p.w_group;
    dst += p.d_offset + group * p.d_group + split * p.d_split;
    for (u32 i = threadIdx.x; i < BN; i += blockDim.x) {
        places[i] = first_n + i < p.n ? column(p, first_n + i).to : ~0ull;
    }

    // The thread's copies: a chunk of the sum, for every ROWS_AT_ONCE-th row.
    const int LEFT = (BM + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, RIGHT = (BN + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const T* left[LEFT];
    bool left_there[LEFT];
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        u32 m = first_m + row + i * ROWS_AT_ONCE;
        left_there[i] = m < p.m;
        left[i] = weights + (left_there[i] ? m : 0) * p.w_out;
    }
    const T* right[RIGHT];
    i32 y0[RIGHT], x0[RIGHT];
#pragma unroll
    for (int i = 0; i < RIGHT; i++) {
        u32 n = first_n + row + i * ROWS_AT_ONCE;
        Column at = column(p, n < p.n ? n : 0);
        right[i] = src + at.from;
        // No tap reaches an element of a column past the end.
        y0[i] = n < p.n ? at.y : -(1 << 30);
        x0[i] = at.x;
    }
    u32 k_size = T_H * T_W * p.c, steps = (k_size + BK - 1) / BK;
    u32 begin = 0;
    if (SPLITS > 1) {
        u32 each = (steps + SPLITS - 1) / SPLITS;
        begin = split * each < steps ? split * each : steps;
        steps = begin + each < steps ? each : steps - begin;
    }
    Place at(begin * BK + chunk * CHUNK, p.c);
    const int STAGE = (BM + BN) * ROW;
    auto copy = [&](u32 stage) {
        T* to = tiles + stage * STAGE + row * ROW + chunk * CHUNK;
        bool inside = at.ty < T_H;
        u64 weight = (u64)at.ty * p.w_row + (u64)at.tx * p.w_column + at.c;
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            if (BM % ROWS_AT_ONCE && row + i * ROWS_AT_ONCE >= BM) break;
            bool valid = inside && left_there[i];
            copy_async_16(to + i * ROWS_AT_ONCE * ROW, valid ? left[i] + weight : weights, valid);
        }
        to += BM * ROW;
        i32 dy = at.ty * p.y.reach, dx = at.tx * p.x.reach;
#pragma unroll
        for (int i = 0; i < RIGHT; i++) {
            i32 y = y0[i] + dy, x = x0[i] + dx;
            bool valid = inside && (u32)y < (u32)p.y.size && (u32)x < (u32)p.x.size;
            const T* from = valid ? right[i] + (u32)y * p.row + (u32)x * p.column + at.c : src;
            copy_async_16(to + i * ROWS_AT_ONCE * ROW, from, valid);
        }
        at.advance(p.c);
    };

    Sums sums = {};
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps) copy(stage);
        copy_async_commit();
    }
    for (u32 step = 0; step < steps; step++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        u32 next = step + STAGES - 1;
        if (next < steps) copy(next % STAGES);
        copy_async_commit();
        const T* stage = tiles + step % STAGES * STAGE;
        sums.add(stage, stage + BM * ROW);
    }

    // Through shared memory, so that neighbours are stored together; in parts that fit if sums are wider than elements.
    const int PAD = 16 / sizeof(O), PART = BM < PART_ROWS ? BM : PART_ROWS;
    O* part = (O*)shared;
#pragma unroll
    for (int first = 0; first < BM; first += PART) {
        __syncthreads();
        sums.each([&](int m, int n, A sum) {
            if (m >= first && m < first + PART) part[(m - first) * (BN + PAD) + n] = stored(sum);
        });
        __syncthreads();
        for (u32 i = threadIdx.x; i < PART * (BN / VEC); i += blockDim.x) {
            u32 m = i / (BN / VEC), n = i % (BN / VEC) * VEC;
            u64 place = places[n];
            if (first_m + first + m < p.m && place != ~0ull) {
                store(dst + (first_m + first + m) * p.d_channel + place, load<VEC>(part + m * (BN + PAD) + n));
            }
        }
    }
}
