// dst[b] = lhs[b] rhs[b], any strides. T: the dtype; TILE: rows and columns of the result per block of 256 threads; BATCH_RANK: the number
// of batch dimensions. Sums have the type of arithmetic; integers wrap.

template <class A> struct Sum { typedef A type; };
template <> struct Sum<i16> { typedef u32 type; };
template <> struct Sum<i32> { typedef u32 type; };
template <> struct Sum<i64> { typedef u64 type; };
template <> struct Sum<u8> { typedef u32 type; };

struct Sizes { u64 m, n, k; };
struct Steps { u64 lhs_row, lhs_column, rhs_row, rhs_column; };

// Rows of the result per thread.
const int ROWS = TILE * TILE / 256;

KERNEL(matmul_plain)(const T* lhs, const T* rhs, T* dst, Views<2> batches, Sizes size, Steps step) {
    typedef typename Sum<compute<T>>::type A;
    __shared__ A left[TILE][TILE + 1], right[TILE][TILE + 1];
    u64 across = (size.n + TILE - 1) / TILE, down = (size.m + TILE - 1) / TILE;
    u64 tile = blockIdx.x % (across * down), batch = blockIdx.x / (across * down);
    u64 at[2];
    places<BATCH_RANK>(batches, batch, at);
    lhs += at[0];
    rhs += at[1];
    dst += batch * size.m * size.n;
    u64 row = tile / across * TILE, column = tile % across * TILE;
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE * ROWS;
    A sums[ROWS] = {};
    for (u64 k = 0; k < size.k; k += TILE) {
        for (int i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
            int r = i / TILE, c = i % TILE;
            bool inside = row + r < size.m && k + c < size.k;
            left[r][c] = inside ? (A)value(lhs[(row + r) * step.lhs_row + (k + c) * step.lhs_column]) : (A)0;
            inside = k + r < size.k && column + c < size.n;
            right[r][c] = inside ? (A)value(rhs[(k + r) * step.rhs_row + (column + c) * step.rhs_column]) : (A)0;
        }
        __syncthreads();
        for (int i = 0; i < TILE; i++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] += left[y + r][i] * right[i][x];
        }
        __syncthreads();
    }
    for (int r = 0; r < ROWS; r++) {
        if (row + y + r < size.m && column + x < size.n) {
            dst[(row + y + r) * size.n + column + x] = as<T>((compute<T>)sums[r]);
        }
    }
}
