// Functions of unsigned integers. u8 computes in u32 and wraps when it is stored.

fn f_id(x: u32) -> u32 { return x; }
fn f_abs(x: u32) -> u32 { return x; }
fn f_neg(x: u32) -> u32 { return 0u - x; }
fn f_sqr(x: u32) -> u32 { return x * x; }
fn f_relu(x: u32) -> u32 { return x; }
fn f_ceil(x: u32) -> u32 { return x; }
fn f_floor(x: u32) -> u32 { return x; }
fn f_round(x: u32) -> u32 { return x; }
fn f_sign(x: u32) -> u32 { return min(x, 1u); }

fn f_add(a: u32, b: u32) -> u32 { return a + b; }
fn f_sub(a: u32, b: u32) -> u32 { return a - b; }
fn f_mul(a: u32, b: u32) -> u32 { return a * b; }
fn f_div(a: u32, b: u32) -> u32 { return a / b; }
fn f_minimum(a: u32, b: u32) -> u32 { return min(a, b); }
fn f_maximum(a: u32, b: u32) -> u32 { return max(a, b); }
fn f_eq(a: u32, b: u32) -> u32 { return u32(a == b); }
fn f_ne(a: u32, b: u32) -> u32 { return u32(a != b); }
fn f_lt(a: u32, b: u32) -> u32 { return u32(a < b); }
fn f_le(a: u32, b: u32) -> u32 { return u32(a <= b); }
fn f_gt(a: u32, b: u32) -> u32 { return u32(a > b); }
fn f_ge(a: u32, b: u32) -> u32 { return u32(a >= b); }

// WGSL lets a conversion return either neighbour of a number that f32 cannot represent. Halves convert exactly, and their sum is rounded
// once.
fn to_float(x: u32) -> f32 { return f32(x >> 16u) * 65536.0 + f32(x & 0xffffu); }
