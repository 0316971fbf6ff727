// Functions of i32.

fn f_id(x: i32) -> i32 { return x; }
fn f_abs(x: i32) -> i32 { return abs(x); }
fn f_neg(x: i32) -> i32 { return -x; }
fn f_sqr(x: i32) -> i32 { return x * x; }
fn f_relu(x: i32) -> i32 { return max(x, 0); }
fn f_ceil(x: i32) -> i32 { return x; }
fn f_floor(x: i32) -> i32 { return x; }
fn f_round(x: i32) -> i32 { return x; }
fn f_sign(x: i32) -> i32 { return sign(x); }

fn f_add(a: i32, b: i32) -> i32 { return a + b; }
fn f_sub(a: i32, b: i32) -> i32 { return a - b; }
fn f_mul(a: i32, b: i32) -> i32 { return a * b; }
fn f_div(a: i32, b: i32) -> i32 { return a / b; }
fn f_minimum(a: i32, b: i32) -> i32 { return min(a, b); }
fn f_maximum(a: i32, b: i32) -> i32 { return max(a, b); }
fn f_eq(a: i32, b: i32) -> u32 { return u32(a == b); }
fn f_ne(a: i32, b: i32) -> u32 { return u32(a != b); }
fn f_lt(a: i32, b: i32) -> u32 { return u32(a < b); }
fn f_le(a: i32, b: i32) -> u32 { return u32(a <= b); }
fn f_gt(a: i32, b: i32) -> u32 { return u32(a > b); }
fn f_ge(a: i32, b: i32) -> u32 { return u32(a >= b); }

// As for u32; the upper half has the sign.
fn to_float(x: i32) -> f32 { return f32(x >> 16u) * 65536.0 + f32(x & 0xffff); }
