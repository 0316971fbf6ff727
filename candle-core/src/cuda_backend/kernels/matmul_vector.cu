// dst[row][column] = finish(sum over k of x[row][k] weight[column][k]), for ROWS rows, a warp for COLUMNS columns. T: the operands' dtype;
// OUT: the result's. NORM: whether the rows are RMS-normed, with weights alpha. GATED: the weight has 2 n rows, and GATE(column, column +
// n) is the result. Then bias (before the gate), ACTIVATION, residual.

struct Sizes { u64 n, k, x_row, weight_row, residual_row; };

const int LANES = 16 / sizeof(T);
const int WEIGHTS = GATED ? 2 * COLUMNS : COLUMNS;
// Loads in flight for each of a warp's rows of the weight.
const int UNROLL = WEIGHTS * ROWS > 8 ? 2 : 4;
// Elements that a warp loads at once.
const int STEP = 32 * LANES;

INLINE void multiply(f32 (&sums)[ROWS][WEIGHTS], f32 (&squares)[ROWS], const Pack<T, LANES> (&w)[WEIGHTS], const T* x,
                     u64 x_row, const T* alpha) {
    Pack<T, LANES> scale;
    if (NORM) scale = load<LANES>(alpha);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        Pack<T, LANES> v = load<LANES>(x + row * x_row);
#pragma unroll
        for (int lane = 0; lane < LANES; lane++) {
            f32 element = value(v.at[lane]);
            if (NORM) {
                squares[row] += element * element;
                element *= value(scale.at[lane]);
            }
#pragma unroll
            for (int c = 0; c < WEIGHTS; c++) sums[row][c] += element * value(w[c].at[lane]);
        }
    }
}

KERNEL(matmul_vector)(const T* x, const T* weight, OUT* dst, Sizes size, const T* alpha, f32 eps, const T* bias,
                      const T* residual) {
    int lane = threadIdx.x % 32;
    u64 first = thread_index() / 32 * COLUMNS;
    if (first >= size.n) return;
    const T* from[WEIGHTS];
#pragma unroll
    for (int c = 0; c < WEIGHTS; c++) {
        u64 column = first + c % COLUMNS;
        // A last odd column is computed twice.
        column = column < size.n ? column : size.n - 1;
        from[c] = weight + (column + c / COLUMNS * size.n) * size.weight_row;
    }
    f32 sums[ROWS][WEIGHTS] = {}, squares[ROWS] = {};
    u64 i = lane * LANES;
    for (; i + (UNROLL - 1) * STEP < size.k; i += UNROLL * STEP) {
        Pack<T, LANES> w[UNROLL][WEIGHTS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int c = 0; c < WEIGHTS; c++) w[u][c] = load<LANES>(from[c] + i + u * STEP);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            multiply(sums, squares, w[u], x + i + u * STEP, size.x_row, alpha + i + u * STEP);
        }
    }
    for (; i < size.k; i += STEP) {
        Pack<T, LANES> w[WEIGHTS];
#pragma unroll
        for (int c = 0; c < WEIGHTS; c++) w[c] = load<LANES>(from[c] + i);
        multiply(sums, squares, w, x + i, size.x_row, alpha + i);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        f32 scale = NORM ? rsqrtf(warp_sum(squares[row]) / (f32)size.k + eps) : 1.f;
#pragma unroll
        for (int c = 0; c < WEIGHTS; c++) sums[row][c] = warp_sum(sums[row][c]) * scale;
    }
    if (lane > 0) return;
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            u64 column = first + c;
            if (column >= size.n) continue;
            f32 y = sums[row][c];
            if (BIAS) y += value(bias[column]);
#if GATED
            f32 up = sums[row][c + COLUMNS];
            if (BIAS) up += value(bias[column + size.n]);
            y = GATE(y, up);
#endif
#if ACTIVATES
            y = ACTIVATION(y);
#endif
            if (RESIDUAL) y += value(residual[row * size.residual_row + column]);
            dst[row * size.n + column] = as<OUT>(y);
        }
    }
}
