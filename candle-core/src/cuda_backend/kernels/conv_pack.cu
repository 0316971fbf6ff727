// dst[outer, inner, position, channel] = src, so that the CHANNELS channels of a position are adjacent: zeros where src has fewer. A block
// packs POSITIONS positions of CHUNK channels. T: the dtype's bits; LINEAR: whether positions have a constant stride. Both sides are
// accessed along their contiguous dimension, with shared memory between them.

struct Pack4 {
    u64 offset, outer, inner, channel, row, column;
    u64 inners, positions, width, c, channels;
};

KERNEL(conv_pack)(const T* src, T* dst, Pack4 p) {
    __shared__ T tile[CHUNK][POSITIONS + 1];
    u32 across = (u32)((p.positions + POSITIONS - 1) / POSITIONS), chunks = (u32)((p.channels + CHUNK - 1) / CHUNK);
    u32 block = blockIdx.x;
    u64 first_position = (u64)(block % across) * POSITIONS;
    block /= across;
    u32 first_channel = block % chunks * CHUNK;
    u64 image = block / chunks;
    src += p.offset + image / p.inners * p.outer + image % p.inners * p.inner;
    dst += image * p.positions * p.channels;
    for (u32 i = threadIdx.x; i < CHUNK * POSITIONS; i += blockDim.x) {
        u32 c = i / POSITIONS, at = i % POSITIONS;
        u64 position = first_position + at;
        T x = (T)0;
        if (first_channel + c < p.c && position < p.positions) {
            u64 place = LINEAR ? position * p.column : position / p.width * p.row + position % p.width * p.column;
            x = src[(first_channel + c) * p.channel + place];
        }
        tile[c][at] = x;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < CHUNK * POSITIONS; i += blockDim.x) {
        u32 at = i / CHUNK, c = i % CHUNK;
        u64 position = first_position + at;
        if (first_channel + c < p.channels && position < p.positions) {
            dst[position * p.channels + first_channel + c] = tile[c][at];
        }
    }
}
