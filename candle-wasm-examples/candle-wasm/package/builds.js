/** Whether the build `threads` is beside this script. `cargo xtask web --only simd` says no. */
export const HAS_THREADS = true;
