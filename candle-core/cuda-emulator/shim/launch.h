// After a text: for each kernel, by EMU_KERNEL, what the driver has to know of it.

template <class T, T... I> struct EmuIndices {};
#ifdef __clang__
template <int N> using EmuFirst = __make_integer_seq<EmuIndices, int, N>;
#else
template <int N> using EmuFirst = EmuIndices<int, __integer_pack(N)...>;
#endif
template <class T> struct EmuPlain { typedef T type; static constexpr unsigned char pointer = 0; };
template <class T> struct EmuPlain<const T> { typedef T type; static constexpr unsigned char pointer = 0; };
template <class T> struct EmuPlain<T*> { typedef T* type; static constexpr unsigned char pointer = 1; };
template <class F> struct EmuParameters;
template <class... P> struct EmuParameters<void (*)(P...)> {
    static constexpr unsigned sizes[] = {sizeof(P)..., 0};
    static constexpr unsigned char pointers[] = {EmuPlain<P>::pointer..., 0};
    template <void (*kernel)(P...), int... I>
    static void call(void** p, EmuIndices<int, I...>) { kernel(*(typename EmuPlain<P>::type*)p[I]...); }
    template <void (*kernel)(P...)>
    static void run(void** p) { call<kernel>(p, EmuFirst<(int)sizeof...(P)>{}); }
};

struct EmuKernel {
    void (*run)(void**);
    const unsigned* sizes;            // of the parameters, 0 after the last
    const unsigned char* pointers;    // which of them are pointers
    unsigned max_threads;             // by __launch_bounds__; 0: none given
};
#define EMU_KERNEL(name, bounds)                                                                                   \
    extern "C" __attribute__((visibility("default"))) const EmuKernel emu_kernel_##name = {                        \
        EmuParameters<decltype(&name)>::run<&name>, EmuParameters<decltype(&name)>::sizes,                         \
        EmuParameters<decltype(&name)>::pointers, bounds};

// One variable of this program's that is a thread's own: around it is the block's shared memory.
static __thread char emu_shared_probe;
extern "C" __attribute__((visibility("default"))) char* emu_shared_address() { return &emu_shared_probe; }
