// A sum, a gather or a broadcast over cards that access each other's memory: one launch on each card; the launches synchronise inside the
// kernel.
//
// MODE: SUM, GATHER or BROADCAST. WORLD: the number of ranks. T: the element type. SHOTS, for sums: with 1 every card adds everything, with
// the fewest synchronisations; with 2 a card adds its part and writes it to the others, which moves the fewest bytes. SPACE: size in bytes
// of a slot for tensors. BLOCKS: maximum number of blocks of a launch. ALIGNED: whether `src` starts at a multiple of 16 bytes.
//
// QUICK, for sums and gathers of few bytes: every word is sent together with the number of the call, to a separate slot on each card, where
// the receiver polls for it. No synchronisation, no fence.
//
// The memory of a rank: flags of the synchronisations, the number of the last call and of the finished blocks, then slots for tensors: two
// for the rank's inputs, two for its results; then for each rank two for quick words. Calls alternate between the two. Other ranks have
// read what a rank writes in a call before they synchronise in the next call, and so before the call after that writes there again.

#define SUM 0
#define GATHER 1
#define BROADCAST 2

struct Peers { u64 at[8]; };

// Words of a rank's memory: flags by synchronisation, block and rank, the number of the last call, finished blocks.
enum : u32 { MEETINGS = 2, EPOCH = MEETINGS * BLOCKS * 8, DONE = EPOCH + 1, HEAD_BYTES = 4 * (EPOCH + 64) };

INLINE u32* flag(const Peers& peers, u32 of, u32 meeting, u32 from) {
    return (u32*)peers.at[of] + (meeting * BLOCKS + blockIdx.x) * 8 + from;
}

// Synchronises the same block of all ranks: the earlier writes of each are visible to the others. Returns false if the group has ended.
INLINE bool meet(const Peers& peers, u32 rank, u32 meeting, u32 epoch, const u32* stop) {
    __shared__ u32 ended;
    if (threadIdx.x == 0) ended = 0;
    __syncthreads();
    if (threadIdx.x < WORLD) {
        store_release_system(flag(peers, threadIdx.x, meeting, rank), epoch);
        const u32* theirs = flag(peers, rank, meeting, threadIdx.x);
        for (u32 tries = 1; (i32)(load_acquire_system(theirs) - epoch) < 0; tries++) {
            if (tries % 4096 == 0 && load_acquire_system(stop) != 0) {
                ended = 1;
                break;
            }
        }
    }
    __syncthreads();
    return ended == 0;
}

typedef Pack<T, 16 / sizeof(T)> Unit;

// The 16 bytes of unit `i` of a tensor of `bytes`; the bytes past its end do not matter.
INLINE u128 get(const char* at, u64 i, u64 bytes) {
    if (ALIGNED && 16 * i + 16 <= bytes) return load<4>((const u32*)at + 4 * i);
    u128 unit = {};
    for (u64 j = 16 * i; j < min(16 * i + 16, bytes); j++) ((char*)&unit)[j - 16 * i] = at[j];
    return unit;
}

INLINE void put(char* at, u64 i, u64 bytes, const u128& unit) {
    if (16 * i + 16 <= bytes) return store((u32*)at + 4 * i, unit);
    for (u64 j = 16 * i; j < bytes; j++) at[j] = ((const char*)&unit)[j - 16 * i];
}

// Reads another card's memory, or data that another card has written: not from a cache.
INLINE u128 get_shared(const char* at, u64 i) {
    u128 unit;
    load_volatile(&unit.at[0], (const u32*)at + 4 * i);
    return unit;
}

// The sum of unit `i` of all ranks, in their order.
INLINE u128 sum_of(const Peers& peers, u64 place, u64 i) {
    u128 theirs[WORLD];
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) theirs[rank] = get_shared((const char*)peers.at[rank] + place, i);
    u128 sum;
#pragma unroll
    for (int n = 0; n < 16 / sizeof(T); n++) {
        compute<T> x = value(((const Unit*)&theirs[0])->at[n]);
#pragma unroll
        for (int rank = 1; rank < WORLD; rank++) x += value(((const Unit*)&theirs[rank])->at[n]);
        ((Unit*)&sum)->at[n] = as<T>(x);
    }
    return sum;
}

// Sends two words of a tensor with the number of their call.
INLINE void send_quick(u64 at, u64 i, u32 low, u32 high, u32 epoch) {
    const u32 words[4] = {low, epoch, high, epoch};
    store_volatile((u32*)at + 4 * i, words);
}

// Returns false if the group has ended.
INLINE bool receive_quick(u64 at, u64 i, u32 (&words)[4], u32 epoch, const u32* stop) {
    for (u32 tries = 1;; tries++) {
        load_volatile(words, (const u32*)at + 4 * i);
        if (words[1] == epoch && words[3] == epoch) return true;
        if (tries % 4096 == 0 && load_acquire_system(stop) != 0) return false;
    }
}

typedef Pack<T, 8 / sizeof(T)> Half;

// Eight bytes per thread.
INLINE void quick(const char* src, char* dst, const Peers& peers, u64 bytes, u32 rank, u32 epoch, const u32* stop) {
    u64 places = HEAD_BYTES + 4 * (u64)SPACE + (u64)(epoch % 2) * 8 * QUICK_SPACE;
    for (u64 i = thread_index(); 8 * i < bytes; i += (u64)gridDim.x * blockDim.x) {
        u32 mine[2] = {};
        if (ALIGNED && 8 * i + 8 <= bytes) {
            Pack<u32, 2> both = load<2>((const u32*)src + 2 * i);
            mine[0] = both.at[0], mine[1] = both.at[1];
        } else {
            for (u64 j = 8 * i; j < min(8 * i + 8, bytes); j++) ((char*)mine)[j - 8 * i] = src[j];
        }
#pragma unroll
        for (int to = 0; to < WORLD; to++)
            if (to != rank) send_quick(peers.at[to] + places + rank * QUICK_SPACE, i, mine[0], mine[1], epoch);
        u32 all[WORLD][2];
#pragma unroll
        for (int from = 0; from < WORLD; from++) {
            u32 words[4] = {mine[0], 0, mine[1], 0};
            if (from != rank && !receive_quick(peers.at[rank] + places + from * QUICK_SPACE, i, words, epoch, stop)) return;
            all[from][0] = words[0], all[from][1] = words[2];
        }
        if (MODE == SUM) {
            u32 out[2];
#pragma unroll
            for (int n = 0; n < 8 / sizeof(T); n++) {
                compute<T> x = value(((const Half*)all[0])->at[n]);
#pragma unroll
                for (int from = 1; from < WORLD; from++) x += value(((const Half*)all[from])->at[n]);
                ((Half*)out)->at[n] = as<T>(x);
            }
            if (8 * i + 8 <= bytes) {
                Pack<u32, 2> both = {out[0], out[1]};
                store((u32*)dst + 2 * i, both);
            } else {
                for (u64 j = 8 * i; j < bytes; j++) dst[j] = ((const char*)out)[j - 8 * i];
            }
        } else {
#pragma unroll
            for (int from = 0; from < WORLD; from++) {
                Pack<u32, 2> both = {all[from][0], all[from][1]};
                store((u32*)(dst + from * bytes) + 2 * i, both);
            }
        }
    }
}

KERNEL(peer)(const char* src, char* dst, Peers peers, u64 bytes, u32 rank, u32 root, const u32* stop) {
    u32* own = (u32*)peers.at[rank];
    u32 epoch = *(volatile u32*)(own + EPOCH) + 1;
    u64 given = HEAD_BYTES + (u64)(epoch % 2) * SPACE, got = given + 2 * (u64)SPACE;
    u64 units = (bytes + 15) / 16, first = thread_index(), step = (u64)gridDim.x * blockDim.x;
    char* mine = (char*)own + given;
    if (QUICK) {
        quick(src, dst, peers, bytes, rank, epoch, stop);
    } else if (MODE == SUM && SHOTS == 2) {
        u64 part = (units + WORLD - 1) / WORLD;
        for (int of = 0; of < WORLD; of++) {
            u64 end = min((of + 1) * part, units);
            for (u64 i = of * part + first; i < end; i += step) put(mine, i, SPACE, get(src, i, bytes));
        }
        if (!meet(peers, rank, 0, epoch, stop)) return;
        u64 end = min((rank + 1) * part, units);
        for (u64 i = rank * part + first; i < end; i += step) {
            u128 sum = sum_of(peers, given, i);
#pragma unroll
            for (int of = 0; of < WORLD; of++) put((char*)peers.at[of] + got, i, SPACE, sum);
        }
        if (!meet(peers, rank, 1, epoch, stop)) return;
        for (int of = 0; of < WORLD; of++) {
            u64 end = min((of + 1) * part, units);
            for (u64 i = of * part + first; i < end; i += step) put(dst, i, bytes, get_shared((char*)own + got, i));
        }
    } else {
        if (MODE != BROADCAST || rank == root)
            for (u64 i = first; i < units; i += step) put(mine, i, SPACE, get(src, i, bytes));
        if (!meet(peers, rank, 0, epoch, stop)) return;
        for (u64 i = first; i < units; i += step) {
            if (MODE == SUM) put(dst, i, bytes, sum_of(peers, given, i));
            if (MODE == BROADCAST) put(dst, i, bytes, get_shared((const char*)peers.at[root] + given, i));
            if (MODE == GATHER)
                for (int of = 0; of < WORLD; of++)
                    put(dst + of * bytes, i, bytes, get_shared((const char*)peers.at[of] + given, i));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(own + DONE, 1u) == gridDim.x - 1) {
        own[DONE] = 0;
        *(volatile u32*)(own + EPOCH) = epoch;
    }
}
