// Shared by all kernels; comes after the bindings and the parameters.

// The index of an invocation in its grid. Grids wider than a dimension allows are folded into y.
fn flat(workgroup: vec3<u32>, workgroups: vec3<u32>, local: u32, size: u32) -> u32 {
  return (workgroup.y * workgroups.x + workgroup.x) * size + local;
}

// The tests below use the bits, because a compiler may assume that floats are never NaN.
fn is_nan(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_finite(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// NaN; from a value, because a constant expression must not be one.
fn not_a_number(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) | 0x7fc00000u);
}

// f32 to f16 bits, rounded to nearest even, overflow to infinity, NaN kept: pack2x16float guarantees none of these.
fn f16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) {
    return sign | select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
  }
  if (magnitude < 0x38800000u) {
    // Below the least normal f16: adding a half leaves the result's bits, rounded, at the end of the sum.
    let sum = bitcast<f32>(magnitude) + 0.5;
    return sign | (bitcast<u32>(sum) - 0x3f000000u);
  }
  let odd = (magnitude >> 13u) & 1u;
  return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
}

fn pack_f16(a: f32, b: f32) -> u32 {
  return f16_bits(a) | (f16_bits(b) << 16u);
}

// f32 to bf16 bits, rounded to nearest even, NaN kept.
fn bf16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let odd = (bits >> 16u) & 1u;
  return select((bits + 0x7fffu + odd) >> 16u, (bits >> 16u) | 0x40u, is_nan(x));
}

fn pack_bf16(a: f32, b: f32) -> u32 {
  return bf16_bits(a) | (bf16_bits(b) << 16u);
}

// An F8E4M3 number by its lower 8 bits: bias 7, no infinities, NaN where all but the sign is set.
fn f8_value(byte: u32) -> f32 {
  let magnitude = byte & 0x7fu;
  let normal = bitcast<f32>((magnitude << 20u) + 0x3c000000u);
  let y = select(normal, f32(magnitude) * 0x1p-9f, magnitude < 8u);
  let bits = bitcast<u32>(y) | ((byte & 0x80u) << 24u);
  return bitcast<f32>(select(bits, 0x7fc00000u, magnitude == 0x7fu));
}

// f32 to F8E4M3 bits, rounded to nearest even; overflow becomes the greatest number, 448; NaN kept.
fn f8_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 24u) & 0x80u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return sign | 0x7fu;
  }
  if (magnitude >= 0x43e80000u) {
    return sign | 0x7eu;
  }
  if (magnitude < 0x3c800000u) {
    // Below the least normal number: steps are 2^-9, those of f32 at 2^14.
    let sum = bitcast<f32>(magnitude) + 16384.0;
    return sign | (bitcast<u32>(sum) - 0x46800000u);
  }
  let odd = (magnitude >> 20u) & 1u;
  return sign | ((magnitude - 0x3c000000u + 0x7ffffu + odd) >> 20u);
}

// The 64-bit product of two u32.
fn wide_mul(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu;
  let a1 = a >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let low = a0 * b0;
  let mid = a1 * b0 + (low >> 16u);
  let mid2 = a0 * b1 + (mid & 0xffffu);
  return vec2<u32>((mid2 << 16u) | (low & 0xffffu), a1 * b1 + (mid >> 16u) + (mid2 >> 16u));
}
