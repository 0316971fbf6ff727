// Barriers, what lanes of a warp do together, atomics.

inline void __syncthreads() { emu_barrier(0); }
inline int __syncthreads_count(int predicate) { return emu_barrier(predicate).holding; }
inline int __syncthreads_or(int predicate) { return emu_barrier(predicate).holding != 0; }
inline int __syncthreads_and(int predicate) {
    EmuBarrier barrier = emu_barrier(predicate);
    return barrier.holding == barrier.threads;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { emu_collective(emu_op_sync, mask, nullptr); }
inline unsigned __activemask() { return emu_active(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
inline T emu_shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take 32 or 64 bits");
    EmuShuffle shuffle = {0, ~0ull, from};
    __builtin_memcpy(&shuffle.value, &value, sizeof(T));
    emu_collective(emu_op_shuffle, mask, &shuffle);
    __builtin_memcpy(&value, &shuffle.result, sizeof(T));
    return value;
}
inline int emu_width(int width) {
    if (width < 1 || width > 32 || (width & (width - 1))) emu_fail("a shuffle's width is not a power of two up to 32");
    return width;
}
#define EMU_SHUFFLES(T)                                                                                     \
    inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {                                \
        int own = emu_thread % 32, first = own & ~(emu_width(width) - 1);                                   \
        return emu_shuffle(mask, value, first + (lane & (width - 1)));                                      \
    }                                                                                                       \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {                       \
        int own = emu_thread % 32, first = own & ~(emu_width(width) - 1);                                   \
        return emu_shuffle(mask, value, own - (int)delta >= first ? own - (int)delta : own);                \
    }                                                                                                       \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {                     \
        int own = emu_thread % 32, last = own | (emu_width(width) - 1);                                     \
        return emu_shuffle(mask, value, own + (int)delta <= last ? own + (int)delta : own);                 \
    }                                                                                                       \
    inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {                            \
        int own = emu_thread % 32, last = own | (emu_width(width) - 1);                                     \
        return emu_shuffle(mask, value, (own ^ bits) <= last ? own ^ bits : own);                           \
    }
EMU_SHUFFLES(int)
EMU_SHUFFLES(unsigned)
EMU_SHUFFLES(long)
EMU_SHUFFLES(unsigned long)
EMU_SHUFFLES(long long)
EMU_SHUFFLES(unsigned long long)
EMU_SHUFFLES(float)
EMU_SHUFFLES(double)

inline unsigned emu_vote(EmuOp op, unsigned mask, unsigned value) {
    EmuShuffle vote = {value, 0, 0};
    emu_collective(op, mask, &vote);
    return (unsigned)vote.result;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emu_vote(emu_op_ballot, mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_add, mask, v); }
inline int __reduce_add_sync(unsigned mask, int v) { return emu_vote(emu_op_reduce_add, mask, v); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_min_u32, mask, v); }
inline int __reduce_min_sync(unsigned mask, int v) { return emu_vote(emu_op_reduce_min_s32, mask, v); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_max_u32, mask, v); }
inline int __reduce_max_sync(unsigned mask, int v) { return emu_vote(emu_op_reduce_max_s32, mask, v); }
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_and, mask, v); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_or, mask, v); }
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v) { return emu_vote(emu_op_reduce_xor, mask, v); }
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
    EmuShuffle match = {0, 0, 0};
    __builtin_memcpy(&match.value, &value, sizeof(T));
    emu_collective(emu_op_match, mask, &match);
    return (unsigned)match.result;
}

// ---- Atomics: each returns what was there before ----

template <class T, class F>
inline T emu_update(T* at, F next) {
    T old, wanted;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do wanted = next(old);
    while (!__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#define EMU_ATOMIC(name, T, next)                                        \
    inline T name(T* at, T v) {                                          \
        return emu_update(at, [v](T old) -> T { return next; });         \
    }
#define EMU_ATOMIC_EXCH(T) EMU_ATOMIC(atomicExch, T, v)
#define EMU_ATOMIC_INTEGER(T)                                            \
    EMU_ATOMIC_EXCH(T)                                                   \
    EMU_ATOMIC(atomicMin, T, old < v ? old : v)                          \
    EMU_ATOMIC(atomicMax, T, old > v ? old : v)                          \
    EMU_ATOMIC(atomicAnd, T, old & v)                                    \
    EMU_ATOMIC(atomicOr, T, old | v)                                     \
    EMU_ATOMIC(atomicXor, T, old ^ v)
#define EMU_ATOMIC_CAS(T)                                                                                    \
    inline T atomicCAS(T* at, T expected, T wanted) {                                                        \
        __atomic_compare_exchange(at, &expected, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);        \
        return expected;                                                                                     \
    }
EMU_ATOMIC_INTEGER(int)
EMU_ATOMIC_INTEGER(unsigned)
EMU_ATOMIC_INTEGER(unsigned long long)
EMU_ATOMIC(atomicMin, long long, old < v ? old : v)
EMU_ATOMIC(atomicMax, long long, old > v ? old : v)
EMU_ATOMIC_EXCH(float)
EMU_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)v))
EMU_ATOMIC(atomicAdd, unsigned, old + v)
EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicAdd, double, old + v)
EMU_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)v))
EMU_ATOMIC(atomicSub, unsigned, old - v)
EMU_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
EMU_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
EMU_ATOMIC_CAS(int)
EMU_ATOMIC_CAS(unsigned)
EMU_ATOMIC_CAS(unsigned long long)
EMU_ATOMIC_CAS(unsigned short)

// ---- Loads and stores with a hint ----

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *(const volatile T*)p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stwb(T* p, T v) { *p = v; }
template <class T> inline void __stwt(T* p, T v) { *p = v; }
